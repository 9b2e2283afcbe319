//! What a model makes of a text.

use serde_json::Value;
use taipan_lm::{Error, HALF_LIFE_EDGES, Inspection, LayerInspection, ScanInspection};
use wasm_bindgen::prelude::*;

use crate::Session;
use crate::failure::{Failure, Result};

/// An inspection, whose arrays are row-major.
#[wasm_bindgen]
pub struct Look {
    inspection: Inspection,
    /// `[{id, text}]`
    tokens: String,
}

#[wasm_bindgen]
impl Session {
    /// See [`taipan_lm::LanguageModel::inspect`].
    pub async fn inspect(&self, text: &str) -> std::result::Result<Look, JsValue> {
        Ok(self.look(text).await?)
    }
}

impl Session {
    async fn look(&self, text: &str) -> Result<Look> {
        let model = self.model()?;
        let ids = model.tokenizer.encode(text)?;
        let tokens = self.tokens(&ids)?;
        Ok(Look { inspection: model.lm().inspect(&ids).await?, tokens: tokens.to_string() })
    }

    /// `[{id, text}]`
    pub(crate) fn tokens(&self, ids: &[u32]) -> Result<Value> {
        let mut stream = self.model()?.tokenizer.stream();
        let token = |id: &u32| {
            let text = stream.push(*id)?;
            Ok(serde_json::json!({ "id": id, "text": text }))
        };
        Ok(ids.iter().map(token).collect::<Result<Vec<Value>>>()?.into())
    }
}

#[wasm_bindgen]
impl Look {
    /// `[{id, text}]`
    pub fn tokens(&self) -> String {
        self.tokens.clone()
    }

    /// The number of layers.
    pub fn layers(&self) -> usize {
        self.inspection.layers.len()
    }

    /// What has a step size of its own in a layer: channels of Mamba, heads of Mamba-2 and 3.
    pub fn channels(&self) -> usize {
        let scan = self.inspection.layers.iter().find_map(|layer| layer.scan.as_ref());
        scan.map_or(0, ScanInspection::lanes)
    }

    /// `[layers, tokens]`, NaN in a layer without a scan.
    pub fn mean_delta(&self) -> Vec<f32> {
        self.of_layers(|layer| Some(&layer.scan.as_ref()?.mean_delta))
    }

    /// `[layers, tokens]`, NaN in a layer without a scan.
    pub fn state_norm(&self) -> Vec<f32> {
        self.of_layers(|layer| Some(&layer.scan.as_ref()?.state_norm))
    }

    /// `[layers, tokens]`; by keys and values in a layer without a scan.
    pub fn gradient_reach(&self) -> Vec<f32> {
        self.of_layers(|layer| match (&layer.scan, &layer.attention) {
            (Some(scan), _) => Some(&scan.gradient_reach),
            (None, attention) => Some(&attention.as_ref()?.gradient_reach),
        })
    }

    /// `[bins + 1]`
    pub fn half_life_edges() -> Vec<f32> {
        floats(&HALF_LIFE_EDGES)
    }

    /// `[layers, bins]`, zeros in a layer without a scan.
    pub fn half_lives(&self) -> Vec<u32> {
        let none = [0; HALF_LIFE_EDGES.len() - 1];
        let of = |layer: &LayerInspection| {
            let counts = layer.scan.as_ref().map_or(&none[..], |scan| &scan.half_lives);
            let counts = counts.iter().map(|count| u32::try_from(*count).unwrap_or(u32::MAX));
            counts.collect::<Vec<u32>>()
        };
        self.inspection.layers.iter().flat_map(of).collect()
    }

    /// `[tokens, channels]` of a layer, NaN if it has no scan.
    pub fn delta(&self, layer: usize) -> std::result::Result<Vec<f32>, JsValue> {
        let none = vec![f32::NAN; self.inspection.ids.len() * self.channels()];
        Ok(self.layer(layer)?.scan.as_ref().map_or(none, |scan| floats(&scan.delta)))
    }

    /// `[n, n]` of a layer, for the last `n` tokens, at most 128: its attention, or the hidden
    /// attention of its scan.
    pub fn attention(&self, layer: usize) -> std::result::Result<Vec<f32>, JsValue> {
        let LayerInspection { scan, attention } = self.layer(layer)?;
        let attention = attention.as_ref().map(|attention| attention.attention());
        let map = attention.or_else(|| Some(scan.as_ref()?.hidden_attention()));
        Ok(map.map_or_else(Vec::new, |map| floats(&map.values)))
    }
}

impl Look {
    fn of_layers(&self, view: impl Fn(&LayerInspection) -> Option<&Vec<f64>>) -> Vec<f32> {
        let none = vec![f64::NAN; self.inspection.ids.len()];
        let layers = self.inspection.layers.iter();
        layers.flat_map(|layer| floats(view(layer).unwrap_or(&none))).collect()
    }

    fn layer(&self, layer: usize) -> Result<&LayerInspection> {
        let count = self.inspection.layers.len();
        let missing = || {
            let why = format!("layer {layer}, expected less than {count}");
            Failure::from(Error::invalid("inspect", why))
        };
        self.inspection.layers.get(layer).ok_or_else(missing)
    }
}

fn floats(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}
