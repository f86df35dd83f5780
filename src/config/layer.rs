//! One layer of values, and the question which of several layers a value comes from.

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

use super::document::Document;
use super::problem::Place;

/// One layer of values, as figment takes it.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) dict: Dict,
    pub(crate) document: Option<Document>,
}

impl Provider for &Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}

/// The place where the value that is used was set.
pub(crate) fn place_of(path: &[String], layers: &[Layer]) -> Place {
    let in_layer = |layer: &Layer| match &layer.document {
        Some(document) => document.place(path),
        None => contains(&layer.dict, path).then(|| Place::Named(layer.name.clone())),
    };
    layers.iter().rev().find_map(in_layer).unwrap_or_else(|| Place::Named("configuration".into()))
}

pub(crate) fn contains(dict: &Dict, path: &[String]) -> bool {
    match path {
        [] => true,
        [first, rest @ ..] => match dict.get(first) {
            Some(Value::Dict(_, below)) => contains(below, rest),
            Some(Value::Array(_, parts)) => {
                rest.is_empty() || rest[0].parse::<usize>().is_ok_and(|index| index < parts.len())
            }
            Some(_) => rest.is_empty(),
            None => false,
        },
    }
}
