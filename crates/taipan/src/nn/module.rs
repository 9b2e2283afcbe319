//! Parameters by name.

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// Something with parameters: a block, a layer, a model.
///
/// [`module!`](crate::module) implements it for a struct whose fields are tensors or modules. The
/// name of a parameter is the path to it, `layers.0.norm.weight`; a `Vec` numbers its elements. A
/// parameter is frozen if its tensor is not [tracked](Tensor::tracked).
///
/// ```
/// use taipan::nn::{Initializer, Linear, Module};
/// use taipan::{Activation, DType, Device, Result, Tensor};
///
/// struct Mlp {
///     layers: Vec<Linear>,
///     scale: Tensor,
///     classes: usize,
/// }
///
/// taipan::module!(Mlp { layers, scale; classes });
///
/// let mut init = Initializer::new(1, DType::F32, &Device::Cpu);
/// let layers = vec![Linear::new(2, 16, &mut init)?, Linear::new(16, 3, &mut init)?];
/// let scale = Tensor::ones(&[3], DType::F32, &Device::Cpu)?.tracked();
/// let mut model = Mlp { layers, scale, classes: 3 };
///
/// let names: Vec<String> = model.parameters().into_iter().map(|(name, _)| name).collect();
/// let layers = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"];
/// assert_eq!(names, [&layers[..], &["scale"]].concat());
/// assert_eq!(model.num_parameters(), 2 * 16 + 16 + 16 * 3 + 3 + 3);
/// assert_eq!(model.freeze("layers.0.*")?, 2);
/// assert!(!model.layers[0].parameters()[0].1.is_tracked());
/// # Ok::<(), taipan::Error>(())
/// ```
pub trait Module {
    /// Show every parameter to the visitor, always in the same order.
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>);

    /// [`visit`](Module::visit), in the same order, with parameters that can be changed.
    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>);

    /// All parameters, by name.
    fn parameters(&self) -> Vec<(String, &Tensor)> {
        let mut all = Vec::new();
        self.visit(&mut Visitor::new(&mut |name, tensor| all.push((name.into(), tensor))));
        all
    }

    /// All parameters, by name, to be changed.
    fn parameters_mut(&mut self) -> Vec<(String, &mut Tensor)> {
        let mut all = Vec::new();
        self.visit_mut(&mut Visitor::new(&mut |name, tensor| all.push((name.into(), tensor))));
        all
    }

    /// The number of elements of all parameters.
    fn num_parameters(&self) -> usize {
        let mut count = 0;
        self.visit(&mut Visitor::new(&mut |_, tensor| count += tensor.len()));
        count
    }

    /// Freeze the parameters that a pattern [matches](matches()): they get no gradient, and an
    /// optimiser made after it leaves them as they are. Returns how many they are; none is an
    /// error.
    fn freeze(&mut self, pattern: &str) -> Result<usize> {
        change(self, "freeze", pattern, |tensor| *tensor = tensor.detached())
    }

    /// Undo [`freeze`](Module::freeze): the parameters that a pattern matches are tracked again.
    fn unfreeze(&mut self, pattern: &str) -> Result<usize> {
        change(self, "unfreeze", pattern, |tensor| *tensor = tensor.detached().tracked())
    }
}

/// Change the parameters that a pattern matches, and count them.
fn change<M: Module + ?Sized>(
    module: &mut M,
    op: &'static str,
    pattern: &str,
    change: impl Fn(&mut Tensor),
) -> Result<usize> {
    let mut count = 0;
    module.visit_mut(&mut Visitor::new(&mut |name, tensor| {
        if matches(pattern, name) {
            change(tensor);
            count += 1;
        }
    }));
    match count {
        0 => Err(unmatched(op, pattern, module)),
        _ => Ok(count),
    }
}

/// The error of a pattern that no name matches.
pub(crate) fn unmatched<M: Module + ?Sized>(op: &'static str, pattern: &str, of: &M) -> Error {
    let names: Vec<String> = of.parameters().into_iter().map(|(name, _)| name).collect();
    let some: Vec<&str> = names.first().into_iter().chain(names.last()).map(|n| &**n).collect();
    let expected = format!("expected names like {}", some.join(" or "));
    Error::Shape { op, why: format!("{pattern:?} matches no parameter, {expected}") }
}

/// Whether a pattern, in which `*` stands for anything, matches the name of a parameter, or that of
/// the stored tensor which the parameter is a slice of.
///
/// ```
/// use taipan::nn::matches;
///
/// assert!(matches("*.bias", "layers.0.bias") && !matches("layers.0", "layers.0.bias"));
/// assert!(matches("*in_proj.weight", "mixer.in_proj.weight[x]"));
/// ```
pub fn matches(pattern: &str, name: &str) -> bool {
    whole_matches(pattern, name) || whole_matches(pattern, stored_name(name))
}

fn whole_matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, behind)) => name.strip_prefix(before).is_some_and(|rest| {
            let at = |(i, _): (usize, char)| whole_matches(behind, &rest[i..]);
            rest.char_indices().any(at) || whole_matches(behind, "")
        }),
    }
}

/// The name in a file of a parameter: slices of one tensor, `weight[x]` and `weight[z]`, are stored
/// as `weight`, one below the other.
///
/// ```
/// assert_eq!(taipan::nn::stored_name("in_proj.weight[x]"), "in_proj.weight");
/// ```
pub fn stored_name(name: &str) -> &str {
    match name.strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
        Some((stored, _)) => stored,
        None => name,
    }
}

/// What a [`Module`] shows its parameters to: `T` is a reference to a [`Tensor`].
pub struct Visitor<'v, T> {
    path: String,
    see: &'v mut dyn FnMut(&str, T),
}

impl<'v, T> Visitor<'v, T> {
    /// One that calls `see` with the name of each parameter, and the parameter.
    pub fn new(see: &'v mut dyn FnMut(&str, T)) -> Visitor<'v, T> {
        Visitor { path: String::new(), see }
    }

    /// Show a parameter, whose name is the path to here.
    fn tensor(&mut self, tensor: T) {
        (self.see)(&self.path, tensor);
    }

    /// Call `visit` with a path that is longer by a name.
    fn inside(&mut self, name: &str, visit: impl FnOnce(&mut Self)) {
        let len = self.path.len();
        if len > 0 && !name.starts_with('[') {
            self.path.push('.');
        }
        self.path.push_str(name);
        visit(self);
        self.path.truncate(len);
    }
}

impl<'a> Visitor<'_, &'a Tensor> {
    /// Visit a field, under its name.
    pub fn field(&mut self, name: &str, field: &'a (impl Module + ?Sized)) {
        self.inside(name, |visitor| field.visit(visitor));
    }
}

impl<'a> Visitor<'_, &'a mut Tensor> {
    /// Visit a field, under its name.
    pub fn field(&mut self, name: &str, field: &'a mut (impl Module + ?Sized)) {
        self.inside(name, |visitor| field.visit_mut(visitor));
    }
}

/// Implements [`Module`](crate::nn::Module) for a struct: `module!(Type { fields; others })`.
///
/// `fields` are tensors, modules, or `Option`s, `Vec`s and arrays of them; each is visited under
/// its own name, or another: `a_log as "A_log"`. `others` are all fields that have no parameters. A
/// field that is forgotten does not compile: it would never be trained.
#[macro_export]
macro_rules! module {
    ($type:ident {
        $($field:ident $(as $name:literal)?),* $(,)? $(; $($other:ident),* $(,)?)?
    }) => {
        #[allow(unused_variables)] // `visitor`, where there are no parameters
        impl $crate::nn::Module for $type {
            fn visit<'a>(&'a self, visitor: &mut $crate::nn::Visitor<'_, &'a $crate::Tensor>) {
                let $type { $($field,)* $($($other: _,)*)? } = self;
                $(visitor.field($crate::module!(@ $field $($name)?), $field);)*
            }

            fn visit_mut<'a>(
                &'a mut self,
                visitor: &mut $crate::nn::Visitor<'_, &'a mut $crate::Tensor>,
            ) {
                let $type { $($field,)* $($($other: _,)*)? } = self;
                $(visitor.field($crate::module!(@ $field $($name)?), $field);)*
            }
        }
    };
    (@ $field:ident) => { stringify!($field) };
    (@ $field:ident $name:literal) => { $name };
}

impl Module for Tensor {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        visitor.tensor(self);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        visitor.tensor(self);
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        (**self).visit(visitor);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        (**self).visit_mut(visitor);
    }
}

impl<M: Module> Module for Option<M> {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        self.iter().for_each(|module| module.visit(visitor));
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        self.iter_mut().for_each(|module| module.visit_mut(visitor));
    }
}

impl<M: Module> Module for [M] {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        for (i, module) in self.iter().enumerate() {
            visitor.field(&i.to_string(), module);
        }
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        for (i, module) in self.iter_mut().enumerate() {
            visitor.field(&i.to_string(), module);
        }
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        self[..].visit(visitor);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        self[..].visit_mut(visitor);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, &'a Tensor>) {
        self[..].visit(visitor);
    }

    fn visit_mut<'a>(&'a mut self, visitor: &mut Visitor<'_, &'a mut Tensor>) {
        self[..].visit_mut(visitor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name) in [
            ("a.b", "a.b"),
            ("*", ""),
            ("*", "a.b"),
            ("a*", "a"),
            ("*b", "a.b"),
            ("a*c*e", "abcde"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a", "ab"), ("b", "ab"), ("a*c", "ab"), ("*a", "ab"), ("", "a")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
