//! One JSON value as the text that psycopg makes of what msgspec decodes it into. None: only Python may decide.
use crate::scan::{after_name, integer, literal, members, number, plain_string, string};

/// What a field holds. `Any`, `Object` and `Array` are for columns of json and jsonb.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Int,
    Float,
    Str,
    Bool,
    Decimal,
    DateTime,
    Date,
    Time,
    Uuid,
    Bytes,
    Any,
    Object,
    Array,
}

impl Kind {
    pub fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "int" => Kind::Int,
            "float" => Kind::Float,
            "str" => Kind::Str,
            "bool" => Kind::Bool,
            "decimal" => Kind::Decimal,
            "datetime" => Kind::DateTime,
            "date" => Kind::Date,
            "time" => Kind::Time,
            "uuid" => Kind::Uuid,
            "bytes" => Kind::Bytes,
            "any" => Kind::Any,
            "object" => Kind::Object,
            "array" => Kind::Array,
            _ => return None,
        })
    }

    /// Whether a text that was written has an offset from UTC.
    pub fn has_zone(self, text: &[u8]) -> bool {
        let from = match self {
            Kind::DateTime => 10,
            Kind::Time => 0,
            _ => return false,
        };
        text[from..].iter().any(|c| matches!(c, b'+' | b'-'))
    }

    /// Append the value at `i` to `to`, not yet escaped for COPY; returns the index after it.
    pub fn write(self, b: &[u8], i: usize, to: &mut Vec<u8>) -> Option<usize> {
        match self {
            Kind::Int => copied(b, i, integer(b, i)?, to),
            Kind::Float => float(b, i, to),
            Kind::Str => string(b, i, |part| to.extend_from_slice(part.as_bytes())),
            Kind::Bool => boolean(b, i, [b"f", b"t"], to),
            Kind::Decimal if b[i] != b'"' => copied(b, i, decimal(b, i)?, to),
            Kind::Any => json(b, i, to, DEPTH),
            Kind::Object => (b[i] == b'{').then(|| json(b, i, to, DEPTH))?,
            Kind::Array => (b[i] == b'[').then(|| json(b, i, to, DEPTH))?,
            _ => {
                let end = plain_string(b, i)?;
                self.write_text(&b[i + 1..end - 1], to)?;
                Some(end)
            }
        }
    }

    /// The types that JSON has as strings.
    fn write_text(self, s: &[u8], to: &mut Vec<u8>) -> Option<()> {
        match self {
            Kind::Decimal => (!s.is_empty() && decimal(s, 0)? == s.len()).then(|| to.extend_from_slice(s)),
            Kind::Date => date(s).then(|| to.extend_from_slice(s)),
            Kind::Time => time(s, to),
            Kind::DateTime => {
                if s.len() < 19 || s[10] != b'T' || !date(&s[..10]) {
                    return None;
                }
                to.extend_from_slice(&s[..10]);
                to.push(b' ');
                time(&s[11..], to)
            }
            Kind::Uuid => uuid(s, to),
            Kind::Bytes => base64(s, to),
            _ => None,
        }
    }
}

const DEPTH: u32 = 32;

fn copied(b: &[u8], i: usize, end: usize, to: &mut Vec<u8>) -> Option<usize> {
    to.extend_from_slice(&b[i..end]);
    Some(end)
}

fn boolean(b: &[u8], i: usize, words: [&[u8]; 2], to: &mut Vec<u8>) -> Option<usize> {
    let is_true = *b.get(i)? == b't';
    to.extend_from_slice(words[is_true as usize]);
    literal(b, i, if is_true { b"true" } else { b"false" })
}

// -- numbers ----------------------------------------------------------------------------------------------------

/// The shortest digits that read as the same number, in the notation of Python's repr().
fn float(b: &[u8], i: usize, to: &mut Vec<u8>) -> Option<usize> {
    let (end, _) = number(b, i)?;
    if end - i > 24 {
        return None;
    }
    let value: f64 = std::str::from_utf8(&b[i..end]).ok()?.parse().ok()?;
    if !value.is_finite() || (value == 0.0 && b[i..end] != *b"0" && b[i..end] != *b"0.0") {
        return None; // out of range, or a zero with a sign or an exponent
    }
    let shown = format!("{value:e}");
    let (digits, exponent) = shown.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    if digits.len() > 16 && may_be_between(value, digits) {
        return None;
    }
    if (-4..16).contains(&exponent) {
        to.extend_from_slice(format!("{value:?}").as_bytes());
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        to.extend_from_slice(format!("{digits}e{sign}{:02}", exponent.abs()).as_bytes());
    }
    Some(end)
}

/// Whether the number may be just between two shortest texts: Rust takes the higher one then, Python the even one.
///
/// Of up to 15 digits there is one shortest text; `digits` has a point beside them, and perhaps a sign.
fn may_be_between(value: f64, digits: &str) -> bool {
    let exact = format!("{value:.18e}");
    let rest = exact[digits.len()..].split('e').next().unwrap_or("");
    rest.starts_with('5') && rest[1..].bytes().all(|c| c == b'0')
}

/// A number that Decimal writes as it stands: no exponent, at most six digits after the point, no negative zero.
fn decimal(b: &[u8], i: usize) -> Option<usize> {
    let (end, is_integer) = number(b, i)?;
    let token = &b[i..end];
    let is_zero = token.iter().all(|c| matches!(c, b'-' | b'0' | b'.'));
    let fraction = if is_integer {
        0
    } else {
        token.len() - 1 - token.iter().position(|&c| c == b'.')?
    };
    let is_plain = token.iter().all(|&c| c != b'e' && c != b'E');
    (is_plain && token.len() <= 40 && fraction <= 6 && !(is_zero && token[0] == b'-')).then_some(end)
}

// -- time -------------------------------------------------------------------------------------------------------

fn two(s: &[u8], i: usize, most: u32) -> Option<u32> {
    let pair = s.get(i..i + 2)?;
    let value = (pair[0] as char).to_digit(10)? * 10 + (pair[1] as char).to_digit(10)?;
    (value <= most).then_some(value)
}

/// Whether it is a date, `2026-11-22`, of the years 1 to 9999.
fn date(s: &[u8]) -> bool {
    let read = || {
        let year = two(s, 0, 99)? * 100 + two(s, 2, 99)?;
        let (month, day) = (two(s, 5, 12)?, two(s, 8, 31)?);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            2 => 28 + is_leap as u32,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        Some(year > 0 && month > 0 && day > 0 && day <= days)
    };
    s.len() == 10 && s[4] == b'-' && s[7] == b'-' && read() == Some(true)
}

/// `20:57:14`, with up to six digits of a second, and an offset from UTC; as isoformat() writes it.
fn time(s: &[u8], to: &mut Vec<u8>) -> Option<()> {
    two(s, 0, 23)?;
    two(s, 3, 59)?;
    two(s, 6, 59)?;
    if s[2] != b':' || s[5] != b':' {
        return None;
    }
    to.extend_from_slice(&s[..8]);
    let mut zone = &s[8..];
    if zone.first() == Some(&b'.') {
        let digits = zone[1..].iter().take_while(|c| c.is_ascii_digit()).count();
        if digits == 0 || digits > 6 {
            return None;
        }
        if zone[1..=digits].iter().any(|&c| c != b'0') {
            to.extend_from_slice(&zone[..=digits]);
            to.extend_from_slice(&b"000000"[digits..]);
        }
        zone = &zone[1 + digits..];
    }
    match zone {
        b"" => {}
        b"Z" | b"+00:00" | b"-00:00" => to.extend_from_slice(b"+00:00"),
        [b'+' | b'-', _, _, b':', _, _] => {
            two(zone, 1, 23)?;
            two(zone, 4, 59)?;
            to.extend_from_slice(zone);
        }
        _ => return None,
    }
    Some(())
}

// -- uuid, bytes ------------------------------------------------------------------------------------------------

fn uuid(s: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let hyphens = match s.len() {
        32 => &[][..],
        36 => &[8, 13, 18, 23][..],
        _ => return None,
    };
    for (at, &c) in s.iter().enumerate() {
        match c {
            b'-' if hyphens.contains(&at) => {}
            _ if hyphens.contains(&at) || !c.is_ascii_hexdigit() => return None,
            _ => to.push(c.to_ascii_lowercase()),
        }
    }
    Some(())
}

/// Standard base64 with its padding, as the hexadecimal form of bytea.
fn base64(s: &[u8], to: &mut Vec<u8>) -> Option<()> {
    if !s.len().is_multiple_of(4) {
        return None;
    }
    let padding = s.iter().rev().take_while(|&&c| c == b'=').count();
    if padding > 2 {
        return None;
    }
    let (mut bits, mut held) = (0u32, 0);
    to.extend_from_slice(b"\\x");
    for &c in &s[..s.len() - padding] {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, held) = (bits << 6 | six as u32, held + 6);
        if held >= 8 {
            held -= 8;
            let byte = (bits >> held) as u8;
            to.push(HEX[(byte >> 4) as usize]);
            to.push(HEX[(byte & 15) as usize]);
            bits &= (1 << held) - 1;
        }
    }
    (bits == 0).then_some(()) // bits after the last byte: Python decides
}

const HEX: &[u8; 16] = b"0123456789abcdef";

// -- json -------------------------------------------------------------------------------------------------------

/// Any JSON as json.dumps() writes what msgspec decodes it into.
fn json(b: &[u8], i: usize, to: &mut Vec<u8>, depth: u32) -> Option<usize> {
    match *b.get(i)? {
        b'"' => json_string(b, i, to),
        b't' | b'f' => boolean(b, i, [b"false", b"true"], to),
        b'n' => copied(b, i, literal(b, i, b"null")?, to),
        c @ (b'[' | b'{') => {
            if depth == 0 {
                return None;
            }
            let (mut names, mut is_first) = (Vec::new(), true);
            to.push(c);
            let end = members(b, i, |mut i| {
                if !std::mem::take(&mut is_first) {
                    to.extend_from_slice(b", ");
                }
                if c == b'{' {
                    i = json_name(b, i, to, &mut names)?;
                }
                json(b, i, to, depth - 1)
            });
            to.push(c + 2); // the closing bracket
            end
        }
        _ => match number(b, i)?.1 {
            true => copied(b, i, integer(b, i)?, to),
            false => float(b, i, to),
        },
    }
}

/// A member's name and colon; a name that comes twice, or has escapes, is Python's.
fn json_name<'a>(b: &'a [u8], i: usize, to: &mut Vec<u8>, names: &mut Vec<&'a [u8]>) -> Option<usize> {
    let end = plain_string(b, i)?;
    let name = &b[i + 1..end - 1];
    if names.len() >= 64 || names.contains(&name) {
        return None;
    }
    names.push(name);
    json_string(b, i, to)?;
    to.extend_from_slice(b": ");
    after_name(b, end)
}

fn json_string(b: &[u8], i: usize, to: &mut Vec<u8>) -> Option<usize> {
    to.push(b'"');
    let end = string(b, i, |part| {
        for c in part.chars() {
            match c {
                '"' => to.extend_from_slice(b"\\\""),
                '\\' => to.extend_from_slice(b"\\\\"),
                '\n' => to.extend_from_slice(b"\\n"),
                '\r' => to.extend_from_slice(b"\\r"),
                '\t' => to.extend_from_slice(b"\\t"),
                '\u{c}' => to.extend_from_slice(b"\\f"),
                '\u{8}' => to.extend_from_slice(b"\\b"),
                ' '..='~' => to.push(c as u8),
                _ => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        to.extend_from_slice(format!("\\u{unit:04x}").as_bytes());
                    }
                }
            }
        }
    });
    to.push(b'"');
    end
}
