//! One JSON object as one line of COPY text, without its end.
use crate::scan::{after_name, literal, members, plain_string, skip, white_space};
use crate::values::Kind;

/// A field of the type. `missing` is its COPY text where the object does not have it; None: it must have it.
pub struct Field {
    pub name: Vec<u8>,
    pub kind: Kind,
    pub items: Option<Items>,
    pub nullable: bool,
    pub missing: Option<Vec<u8>>,
}

/// The field is a Postgres array of its kind.
pub struct Items {
    pub nullable: bool,
}

#[derive(Clone, Copy)]
enum Slot {
    Missing,
    Null,
    Source(usize, usize),  // bytes of the value that are COPY text as they are
    Written(usize, usize), // bytes of Scratch::text
}

/// What one row needs beside its output; it is used again for the next.
pub struct Scratch {
    slots: Vec<Slot>,
    text: Vec<u8>,
    plain: Vec<u8>,
    item: Vec<u8>,
}

impl Scratch {
    pub fn new(fields: &[Field]) -> Scratch {
        Scratch {
            slots: vec![Slot::Missing; fields.len()],
            text: Vec::new(),
            plain: Vec::new(),
            item: Vec::new(),
        }
    }
}

/// Append the row to `out`; None, with nothing appended, where only Python may decide.
pub fn write(fields: &[Field], columns: &[usize], b: &[u8], s: &mut Scratch, out: &mut Vec<u8>) -> Option<()> {
    simdutf8::basic::from_utf8(b).ok()?;
    s.text.clear();
    s.slots.fill(Slot::Missing);
    let start = white_space(b, 0);
    if *b.get(start)? != b'{' {
        return None;
    }
    let mut expected = 0;
    let end = members(b, start, |i| {
        let end = plain_string(b, i)?;
        let (found, i) = (place(fields, &b[i + 1..end - 1], expected), after_name(b, end)?);
        let Some(at) = found else { return skip(b, i, 32) };
        expected = at + 1;
        read(&fields[at], at, b, i, s)
    })?;
    let has_all = fields
        .iter()
        .zip(&s.slots)
        .all(|(f, slot)| f.missing.is_some() || !matches!(slot, Slot::Missing));
    if white_space(b, end) != b.len() || !has_all {
        return None;
    }
    for (n, &at) in columns.iter().enumerate() {
        if n > 0 {
            out.push(b'\t');
        }
        match s.slots[at] {
            Slot::Source(from, to) => out.extend_from_slice(&b[from..to]),
            Slot::Written(from, to) => out.extend_from_slice(&s.text[from..to]),
            Slot::Null => out.extend_from_slice(b"\\N"),
            Slot::Missing => out.extend_from_slice(fields[at].missing.as_deref()?),
        }
    }
    Some(())
}

/// The field of this name; mostly the one after the last.
#[inline(always)]
fn place(fields: &[Field], name: &[u8], expected: usize) -> Option<usize> {
    match fields.get(expected) {
        Some(field) if field.name == name => Some(expected),
        _ => fields.iter().position(|field| field.name == name),
    }
}

#[inline(always)]
fn read(field: &Field, at: usize, b: &[u8], i: usize, s: &mut Scratch) -> Option<usize> {
    if *b.get(i)? == b'n' {
        s.slots[at] = Slot::Null;
        return if field.nullable { literal(b, i, b"null") } else { None };
    }
    if field.items.is_none() {
        // The two most frequent kinds need no copy.
        if field.kind == Kind::Int {
            let end = crate::scan::integer(b, i)?;
            s.slots[at] = Slot::Source(i, end);
            return Some(end);
        }
        if field.kind == Kind::Str {
            if let Some(end) = plain_string(b, i) {
                s.slots[at] = Slot::Source(i + 1, end - 1);
                return Some(end);
            }
        }
    }
    s.plain.clear();
    let end = match &field.items {
        Some(items) => array(field.kind, items, b, i, s)?,
        None => field.kind.write(b, i, &mut s.plain)?,
    };
    let from = s.text.len();
    escape(&s.plain, &mut s.text);
    s.slots[at] = Slot::Written(from, s.text.len());
    Some(end)
}

/// A list as the literal of a Postgres array, as psycopg writes it.
fn array(kind: Kind, items: &Items, b: &[u8], i: usize, s: &mut Scratch) -> Option<usize> {
    if b[i] != b'[' {
        return None;
    }
    s.plain.push(b'{');
    let mut zoned = None; // whether the items have a zone: psycopg refuses lists of both
    let end = members(b, i, |i| {
        if s.plain.len() > 1 {
            s.plain.push(b',');
        }
        if *b.get(i)? == b'n' {
            s.plain.extend_from_slice(b"NULL");
            return if items.nullable { literal(b, i, b"null") } else { None };
        }
        s.item.clear();
        let end = kind.write(b, i, &mut s.item)?;
        quote(&s.item, &mut s.plain)?;
        (*zoned.get_or_insert(kind.has_zone(&s.item)) == kind.has_zone(&s.item)).then_some(end)
    })?;
    s.plain.push(b'}');
    Some(end)
}

fn quote(item: &[u8], to: &mut Vec<u8>) -> Option<()> {
    // Of Unicode's spaces, some versions of psycopg quote some.
    let is_space = |w: &[u8]| matches!(w, [0xe1, 0x9a] | [0xe2, 0x80 | 0x81] | [0xe3, 0x80]);
    if item.windows(2).any(is_space) {
        return None;
    }
    let special = |c: &u8| matches!(c, b'"' | b'{' | b'}' | b',' | b'\\' | b' ' | 9..=13);
    if item.is_empty() || item.eq_ignore_ascii_case(b"null") || item.iter().any(special) {
        to.push(b'"');
        for &c in item {
            if c == b'"' || c == b'\\' {
                to.push(b'\\');
            }
            to.push(c);
        }
        to.push(b'"');
    } else {
        to.extend_from_slice(item);
    }
    Some(())
}

/// What COPY would read otherwise is written out.
fn escape(plain: &[u8], to: &mut Vec<u8>) {
    let mut from = 0;
    for (at, &c) in plain.iter().enumerate() {
        let instead = match c {
            b'\\' => b'\\',
            8 => b'b',
            9 => b't',
            10 => b'n',
            11 => b'v',
            12 => b'f',
            13 => b'r',
            _ => continue,
        };
        to.extend_from_slice(&plain[from..at]);
        to.extend_from_slice(&[b'\\', instead]);
        from = at + 1;
    }
    to.extend_from_slice(&plain[from..]);
}
