//! JSON values to COPY text, without a Python object for each value.
//!
//! It never guesses: it stops before the first value of which it is not certain what msgspec and psycopg would make of
//! it, and the caller asks them.
#![forbid(unsafe_code)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

mod row;
mod scan;
mod values;

/// How objects of one type become rows of some columns.
#[pyclass(frozen)]
struct Plan {
    fields: Vec<row::Field>,
    columns: Vec<usize>,
}

#[pymethods]
impl Plan {
    /// `fields` has for each its name in JSON, its kind (`int`, `int[]`, `int?[]` where items may be null), whether it
    /// may be null, and its COPY text where it is missing; `columns` the field of each column.
    #[new]
    fn new(fields: Vec<(String, String, bool, Option<Vec<u8>>)>, columns: Vec<usize>) -> PyResult<Self> {
        if columns.is_empty() || columns.iter().any(|&at| at >= fields.len()) {
            return Err(PyValueError::new_err("columns"));
        }
        let fields = fields.into_iter().map(|(name, kind, nullable, missing)| {
            let (of, items) = match (kind.strip_suffix("?[]"), kind.strip_suffix("[]")) {
                (Some(of), _) => (of, Some(row::Items { nullable: true })),
                (None, Some(of)) => (of, Some(row::Items { nullable: false })),
                (None, None) => (&kind[..], None),
            };
            let found = values::Kind::of(of).ok_or_else(|| PyValueError::new_err(kind.clone()))?;
            Ok(row::Field {
                name: name.into_bytes(),
                kind: found,
                items,
                nullable,
                missing,
            })
        });
        Ok(Plan {
            fields: fields.collect::<PyResult<_>>()?,
            columns,
        })
    }

    /// The COPY text of `values[start:end]`, and `end`: the place of the first value that only Python may decide about.
    /// Each row ends with its text of `tails`, which is as long as `values`.
    #[pyo3(signature = (values, start, tails=None))]
    fn encode<'py>(
        &self,
        values: &Bound<'py, PyList>,
        start: usize,
        tails: Option<&Bound<'py, PyList>>,
    ) -> (Bound<'py, PyBytes>, usize) {
        let py = values.py();
        let (values, tails) = (held(values, start), tails.map(|tails| held(tails, start)));
        let bytes: Vec<&[u8]> = values.iter().map(|value| value.as_bytes()).collect();
        let ends: Option<Vec<&[u8]>> = tails
            .as_ref()
            .map(|tails| tails.iter().map(|tail| tail.as_bytes()).collect());
        let (text, rows) = py.detach(|| {
            let mut text = Vec::with_capacity(bytes.iter().map(|b| b.len()).sum());
            let mut scratch = row::Scratch::new(&self.fields);
            let mut rows = 0;
            for (n, b) in bytes.iter().enumerate() {
                let tail = match &ends {
                    None => Some(&b""[..]),
                    Some(ends) => ends.get(n).copied(),
                };
                let begin = text.len();
                let written = tail.and_then(|_| row::write(&self.fields, &self.columns, b, &mut scratch, &mut text));
                if written.is_none() {
                    text.truncate(begin);
                    break;
                }
                text.extend_from_slice(tail.unwrap_or_default());
                text.push(b'\n');
                rows += 1;
            }
            (text, rows)
        });
        (PyBytes::new(py, &text), start + rows)
    }
}

/// The bytes objects from `start` to the end, or to the first other object.
fn held<'py>(list: &Bound<'py, PyList>, start: usize) -> Vec<Bound<'py, PyBytes>> {
    (start..list.len())
        .map_while(|n| list.get_item(n).ok()?.cast_into::<PyBytes>().ok())
        .collect()
}

#[pymodule]
fn seekpoint_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Plan>()
}
