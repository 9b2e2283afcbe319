//! What a model makes of a text.

use serde_json::Value;
use taipan_lm::{Error, HALF_LIFE_EDGES, Inspection, LayerInspection};
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

    /// The number of channels of a layer.
    pub fn channels(&self) -> usize {
        self.inspection.layers.first().map_or(0, |layer| layer.delta.len() / layer.mean_delta.len())
    }

    /// `[layers, tokens]`
    pub fn mean_delta(&self) -> Vec<f32> {
        self.of_layers(|layer| &layer.mean_delta)
    }

    /// `[layers, tokens]`
    pub fn state_norm(&self) -> Vec<f32> {
        self.of_layers(|layer| &layer.state_norm)
    }

    /// `[layers, tokens]`
    pub fn gradient_reach(&self) -> Vec<f32> {
        self.of_layers(|layer| &layer.gradient_reach)
    }

    /// `[bins + 1]`
    pub fn half_life_edges() -> Vec<f32> {
        floats(&HALF_LIFE_EDGES)
    }

    /// `[layers, bins]`
    pub fn half_lives(&self) -> Vec<u32> {
        let counts = self.inspection.layers.iter().flat_map(|layer| &layer.half_lives);
        counts.map(|count| u32::try_from(*count).unwrap_or(u32::MAX)).collect()
    }

    /// `[tokens, channels]` of a layer.
    pub fn delta(&self, layer: usize) -> std::result::Result<Vec<f32>, JsValue> {
        Ok(floats(&self.layer(layer)?.delta))
    }

    /// `[n, n]` of a layer, for the last `n` tokens, at most 128.
    pub fn attention(&self, layer: usize) -> std::result::Result<Vec<f32>, JsValue> {
        Ok(floats(&self.layer(layer)?.attention().values))
    }
}

impl Look {
    fn of_layers(&self, view: impl Fn(&LayerInspection) -> &Vec<f64>) -> Vec<f32> {
        self.inspection.layers.iter().flat_map(|layer| floats(view(layer))).collect()
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
