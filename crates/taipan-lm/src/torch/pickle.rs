//! The part of Python's pickle format that a dict of tensors needs, and nothing else.
//!
//! A pickle is a program for a stack machine that can call any function by name. This one knows
//! five names, none of which runs code: every other name, and every instruction that torch does not
//! use here, is refused. There is no recursion, and memory is linear in the length of the pickle:
//! values are small and copied, text stays where it is, and the items of all tuples are in one
//! place.

use std::collections::HashMap;

use taipan::DType;

/// The most dimensions of a tensor: a shape that is named once can be used by many.
const MAX_RANK: usize = 8;

/// A tensor, of which only the description is in the pickle.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pickled<'a> {
    pub(super) dtype: DType,
    /// The name of the storage that its elements are in,
    pub(super) storage: &'a str,
    /// how many elements that has,
    pub(super) storage_len: usize,
    /// and which is its first.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    /// In elements.
    pub(super) strides: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Value<'a> {
    None,
    Bool,
    Int(i64),
    Text(&'a str),
    Name(Name),
    /// Items `start..start + len` of the machine.
    Tuple {
        start: u32,
        len: u32,
    },
    /// Indices into what the machine has made.
    Dict(u32),
    Storage(u32),
    Tensor(u32),
}

/// What a pickle may name.
#[derive(Clone, Copy, Debug)]
enum Name {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(DType),
}

impl Name {
    fn find(module: &str, name: &str) -> Option<Name> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Name::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Name::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Name::RebuildParameter,
            ("torch", "HalfStorage") => Name::Storage(DType::F16),
            ("torch", "BFloat16Storage") => Name::Storage(DType::BF16),
            ("torch", "FloatStorage") => Name::Storage(DType::F32),
            ("torch", "DoubleStorage") => Name::Storage(DType::F64),
            ("torch", "LongStorage") => Name::Storage(DType::I64),
            _ => return None,
        })
    }
}

/// Elements that several tensors may share.
#[derive(Clone, Copy)]
struct Storage<'a> {
    dtype: DType,
    name: &'a str,
    len: usize,
}

type Result<T> = std::result::Result<T, String>;

/// The tensors of a pickled dict, in its order, or why it is none.
pub(super) fn tensors(pickle: &[u8]) -> Result<Vec<(&str, Pickled<'_>)>> {
    let mut machine = Machine { rest: pickle, ..Machine::default() };
    let result = loop {
        let [code] = machine.take()?;
        if code == b'.' {
            break machine.pop()?;
        }
        machine.step(code)?;
    };
    if !machine.stack.is_empty() {
        return Err("it leaves more than one value".into());
    }
    let Value::Dict(dict) = result else {
        return Err(format!("{} found, expected a dict of tensors", result.kind()));
    };
    let mut tensors = Vec::new();
    for &(name, value) in &machine.dicts[dict as usize] {
        match (name, value) {
            // A tensor may have two names, which is how tied ones are stored.
            (Value::Text(name), Value::Tensor(tensor)) => {
                tensors.push((name, machine.tensors[tensor as usize].clone()));
            }
            (Value::Text(name), other) => {
                return Err(format!("{} is {}, expected a tensor", shown(name), other.kind()));
            }
            (other, _) => return Err(format!("a key is {}, expected text", other.kind())),
        }
    }
    Ok(tensors)
}

#[derive(Default)]
struct Machine<'a> {
    /// What is not yet executed.
    rest: &'a [u8],
    stack: Vec<Value<'a>>,
    /// How high the stack was at each mark.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    items: Vec<Value<'a>>,
    dicts: Vec<Vec<(Value<'a>, Value<'a>)>>,
    storages: Vec<Storage<'a>>,
    tensors: Vec<Pickled<'a>>,
}

impl<'a> Machine<'a> {
    fn step(&mut self, code: u8) -> Result<()> {
        match code {
            // PROTO, FRAME
            0x80 => drop(self.take::<1>()?),
            0x95 => drop(self.take::<8>()?),
            // NONE, NEWTRUE, NEWFALSE
            b'N' => self.push(Value::None),
            0x88 | 0x89 => self.push(Value::Bool),
            // BININT1, BININT2, BININT, LONG1
            b'K' => self.take().map(|n| self.push(Value::Int(u8::from_le_bytes(n).into())))?,
            b'M' => self.take().map(|n| self.push(Value::Int(u16::from_le_bytes(n).into())))?,
            b'J' => self.take().map(|n| self.push(Value::Int(i32::from_le_bytes(n).into())))?,
            0x8a => {
                let [length] = self.take()?;
                let digits = self.bytes(length.into())?;
                self.push(Value::Int(long(digits)?));
            }
            // SHORT_BINUNICODE, BINUNICODE
            0x8c => {
                let [length] = self.take()?;
                self.text(length.into())?;
            }
            b'X' => {
                let length = self.take().map(u32::from_le_bytes)?;
                self.text(length as usize)?;
            }
            // MARK, EMPTY_TUPLE, TUPLE1, TUPLE2, TUPLE3, TUPLE
            b'(' => self.marks.push(self.stack.len()),
            b')' => self.tuple(0)?,
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b't' => {
                let count = self.pop_mark()?;
                self.tuple(count)?;
            }
            // EMPTY_DICT, SETITEM, SETITEMS
            b'}' => self.dict()?,
            b's' => self.set_items(2)?,
            b'u' => {
                let count = self.pop_mark()?;
                self.set_items(count)?;
            }
            // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
            b'q' => self.take().map(u8::from_le_bytes).and_then(|n| self.put(n.into()))?,
            b'r' => self.take().map(u32::from_le_bytes).and_then(|n| self.put(n))?,
            0x94 => self.put(index(self.memo.len())?)?,
            b'h' => self.take().map(u8::from_le_bytes).and_then(|n| self.get(n.into()))?,
            b'j' => self.take().map(u32::from_le_bytes).and_then(|n| self.get(n))?,
            // GLOBAL, STACK_GLOBAL
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.name(module, name)?;
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => self.name(module, name)?,
                _ => return Err("a name is not text".into()),
            },
            // BINPERSID, REDUCE, BUILD
            b'Q' => self.storage()?,
            b'R' => self.call()?,
            b'b' => self.set_attributes()?,
            _ => {
                let what = "which a dict of tensors does not need";
                return Err(format!("instruction {code:#04x}, {what}"));
            }
        }
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) {
        self.stack.push(value);
    }

    /// The topmost value above the last mark.
    fn pop(&mut self) -> Result<Value<'a>> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        let value = if self.stack.len() > bottom { self.stack.pop() } else { None };
        value.ok_or_else(|| "it takes a value from an empty stack".into())
    }

    /// The number of values above the last mark, which is removed.
    fn pop_mark(&mut self) -> Result<usize> {
        let bottom = self.marks.pop().ok_or("it takes values to a mark that is not there")?;
        Ok(self.stack.len() - bottom)
    }

    /// The topmost `count` values, the lowest first.
    fn pop_all(&mut self, count: usize) -> Result<Vec<Value<'a>>> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        let from = self.stack.len().checked_sub(count).filter(|from| *from >= bottom);
        let from = from.ok_or("it takes values from an empty stack")?;
        Ok(self.stack.split_off(from))
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or("it ends early")?;
        self.rest = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.bytes(N)?.try_into().expect("as many"))
    }

    /// Text up to the end of the line.
    fn line(&mut self) -> Result<&'a str> {
        let length = self.rest.iter().position(|byte| *byte == b'\n').ok_or("it ends early")?;
        let line = self.bytes(length + 1)?;
        str::from_utf8(&line[..length]).map_err(|_| "a name is not UTF-8".into())
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let text = str::from_utf8(self.bytes(length)?).map_err(|_| "text is not UTF-8")?;
        self.push(Value::Text(text));
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        let values = self.pop_all(count)?;
        let (start, len) = (index(self.items.len())?, index(count)?);
        self.items.extend(values);
        self.push(Value::Tuple { start, len });
        Ok(())
    }

    fn dict(&mut self) -> Result<()> {
        let dict = Value::Dict(index(self.dicts.len())?);
        self.dicts.push(Vec::new());
        self.push(dict);
        Ok(())
    }

    fn set_items(&mut self, count: usize) -> Result<()> {
        let items = self.pop_all(count)?;
        let Some(Value::Dict(dict)) = self.stack.last() else {
            return Err("it sets an item of what is not a dict".into());
        };
        let (pairs, []) = items.as_chunks::<2>() else {
            return Err("it sets a key without a value".into());
        };
        self.dicts[*dict as usize].extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    fn put(&mut self, place: u32) -> Result<()> {
        let value = *self.stack.last().ok_or("it memoises an empty stack")?;
        self.memo.insert(place, value);
        Ok(())
    }

    fn get(&mut self, place: u32) -> Result<()> {
        let value = self.memo.get(&place);
        self.push(*value.ok_or_else(|| format!("value {place} of its memo is not there"))?);
        Ok(())
    }

    fn name(&mut self, module: &str, name: &str) -> Result<()> {
        let known = Name::find(module, name).ok_or_else(|| {
            let (module, name) = (shown(module), shown(name));
            format!("it names {module}.{name}, which is not part of a dict of tensors: refused")
        })?;
        self.push(Value::Name(known));
        Ok(())
    }

    fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        let Value::Tuple { start, len } = value else { return None };
        Some(&self.items[start as usize..][..len as usize])
    }

    /// `('storage', type, name, device, elements)`
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let &[
            Value::Text("storage"),
            Value::Name(Name::Storage(dtype)),
            Value::Text(name),
            Value::Text(_),
            Value::Int(len),
        ] = self.items(id).unwrap_or(&[])
        else {
            return Err("a reference to data that is not a storage of floats or integers".into());
        };
        let len = size(len)?;
        let storage = Value::Storage(index(self.storages.len())?);
        self.storages.push(Storage { dtype, name, len });
        self.push(storage);
        Ok(())
    }

    fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Value::Name(function) = function else {
            return Err(format!("it calls {}, which is not a function", function.kind()));
        };
        match (function, self.items(arguments).ok_or("arguments are not a tuple")?) {
            (Name::OrderedDict, []) => self.dict(),
            // Whether it has a gradient, and its hooks, of which a file has none.
            (Name::RebuildParameter, &[tensor @ Value::Tensor(_), Value::Bool, Value::Dict(_)]) => {
                self.push(tensor);
                Ok(())
            }
            (
                Name::RebuildTensor,
                &[
                    Value::Storage(storage),
                    Value::Int(offset),
                    shape,
                    strides,
                    Value::Bool,
                    Value::Dict(_),
                    ..,
                ],
            ) => self.tensor(self.storages[storage as usize], offset, shape, strides),
            (function, _) => Err(format!("it calls {function:?} with other arguments than torch")),
        }
    }

    fn tensor(
        &mut self,
        Storage { dtype, name: storage, len: storage_len }: Storage<'a>,
        offset: i64,
        shape: Value<'a>,
        strides: Value<'a>,
    ) -> Result<()> {
        let offset = size(offset)?;
        let (shape, strides) = (self.sizes(shape)?, self.sizes(strides)?);
        if shape.len() != strides.len() {
            return Err(format!("a tensor of shape {shape:?} with strides {strides:?}"));
        }
        let tensor = Value::Tensor(index(self.tensors.len())?);
        self.tensors.push(Pickled { dtype, storage, storage_len, offset, shape, strides });
        self.push(tensor);
        Ok(())
    }

    /// A tuple of sizes.
    fn sizes(&self, value: Value<'a>) -> Result<Vec<usize>> {
        let items = self.items(value).ok_or("a shape is not a tuple")?;
        if items.len() > MAX_RANK {
            let found = items.len();
            return Err(format!("a tensor of {found} dimensions, expected at most {MAX_RANK}"));
        }
        let number = |item: &Value| match item {
            Value::Int(number) => size(*number),
            other => Err(format!("a size is {}, expected a number", other.kind())),
        };
        items.iter().map(number).collect()
    }

    /// torch gives a dict of tensors attributes, with the versions of modules: not needed.
    fn set_attributes(&mut self) -> Result<()> {
        match (self.pop()?, self.stack.last()) {
            (Value::Dict(_), Some(Value::Dict(_))) => Ok(()),
            _ => Err("it sets attributes of what is not a dict".into()),
        }
    }
}

impl Value<'_> {
    /// What it is, in errors.
    fn kind(self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool => "a boolean",
            Value::Int(_) => "a number",
            Value::Text(_) => "text",
            Value::Name(_) => "a function",
            Value::Tuple { .. } => "a tuple",
            Value::Dict(_) => "a dict",
            Value::Storage(_) => "a storage",
            Value::Tensor(_) => "a tensor",
        }
    }
}

/// A whole number, little-endian in two's complement.
fn long(digits: &[u8]) -> Result<i64> {
    let Some(last) = digits.last() else { return Ok(0) };
    let mut bytes = [if *last >= 0x80 { 0xff } else { 0 }; 8];
    let low = bytes.get_mut(..digits.len()).ok_or("a number of more than 64 bits")?;
    low.copy_from_slice(digits);
    Ok(i64::from_le_bytes(bytes))
}

fn size(number: i64) -> Result<usize> {
    number.try_into().map_err(|_| format!("a size is {number}"))
}

fn index(count: usize) -> Result<u32> {
    count.try_into().map_err(|_| "more than 2³² values".into())
}

/// The beginning of a long text, for errors.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
