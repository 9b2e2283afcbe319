//! The adapters of a model.

use taipan::nn::{Adapter, Linear, Module};

use super::LanguageModel;
use crate::Result;
use crate::random::Key;

/// A module whose matrix can have an adapter, a target module in the words of PEFT.
pub(crate) struct TargetModule {
    /// `backbone.layers.0.mixer.in_proj`
    pub(crate) name: String,
    /// The rows of its blocks.
    pub(crate) rows: Vec<usize>,
    pub(crate) columns: usize,
    /// A table of which ids choose rows: it is multiplied from the other side, by one-hot rows.
    pub(crate) is_embedding: bool,
}

impl TargetModule {
    fn of(name: String, linear: &Linear) -> TargetModule {
        let shapes: Vec<_> = linear.blocks().iter().map(|block| block.weight.shape()).collect();
        let rows = shapes.iter().map(|shape| shape[0]).collect();
        TargetModule { name, rows, columns: shapes[0][1], is_embedding: false }
    }
}

/// Returns the adapter of a matrix, if it gets one.
type Choose<'a> = &'a mut dyn FnMut(&TargetModule) -> Result<Option<Adapter>>;

impl LanguageModel {
    /// The same model with the adapters that `choose` returns; everything else is frozen.
    pub(crate) fn adapted(mut self, choose: Choose) -> Result<LanguageModel> {
        for (_, parameter) in self.parameters_mut() {
            *parameter = parameter.detached();
        }
        let name = self.config.family.names().embeddings.to_owned();
        let [v, d] = [self.config.vocab_size, self.config.hidden_size];
        let table = TargetModule { name, rows: vec![d], columns: v, is_embedding: true };
        self.embeddings.set_adapter(choose(&table)?)?;
        for (name, linear) in self.linears_mut() {
            let adapter = choose(&TargetModule::of(name, linear))?;
            linear.set_adapter(adapter)?;
        }
        Ok(self)
    }

    /// The same model without adapters.
    pub(crate) fn without_adapters(&self) -> Result<LanguageModel> {
        self.clone().adapted(&mut |_| Ok(None))
    }

    /// Its adapters, by module.
    pub(crate) fn adapters(&self) -> Vec<(String, &Adapter)> {
        let embeddings = self.config.family.names().embeddings.to_owned();
        let table = self.embeddings.adapter().map(|adapter| (embeddings, adapter));
        let linears = self.linears().into_iter();
        let adapted = linears.filter_map(|(name, linear)| Some((name, linear.adapter()?)));
        table.into_iter().chain(adapted).collect()
    }

    /// The same model, whose adapters drop some of their inputs: which ones follows from the key.
    pub(crate) fn with_dropout(&self, key: Key) -> LanguageModel {
        let mut model = self.clone();
        for ((_, linear), i) in model.linears_mut().into_iter().zip(0..) {
            if let Some(adapter) = linear.adapter_mut() {
                adapter.seed = Some(key.split(i).bits());
            }
        }
        model
    }

    /// All linear layers but a tied head, by name.
    fn linears(&self) -> Vec<(String, &Linear)> {
        let layers = self.config.family.names().layers;
        let mut all = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let named = layer.projections();
            all.extend(named.map(|(name, linear)| (format!("{layers}.{i}.{name}"), linear)));
        }
        all.extend(self.head.iter().map(|head| ("lm_head".to_owned(), head)));
        all
    }

    /// [`linears`](LanguageModel::linears), to be changed.
    pub(super) fn linears_mut(&mut self) -> Vec<(String, &mut Linear)> {
        let layers = self.config.family.names().layers;
        let mut all = Vec::new();
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let named = layer.projections_mut();
            all.extend(named.map(|(name, linear)| (format!("{layers}.{i}.{name}"), linear)));
        }
        all.extend(self.head.iter_mut().map(|head| ("lm_head".to_owned(), head)));
        all
    }
}
