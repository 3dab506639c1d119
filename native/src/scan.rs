//! Steps over JSON. Each returns the index after what it has read, and None where only Python may decide.

/// The index of the first byte at or after `i` that is no white space.
#[inline(always)]
pub fn white_space(b: &[u8], mut i: usize) -> usize {
    while i < b.len() && matches!(b[i], b' ' | b'\t' | b'\n' | b'\r') {
        i += 1;
    }
    i
}

/// The index of the first quote, backslash or control character at or after `i`; the length where there is none.
#[inline(always)]
pub fn plain_end(b: &[u8], mut i: usize) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    while i + 8 <= b.len() {
        // Eight bytes at once. A byte above the first one that is found may be marked wrongly, but never one below it.
        let v = u64::from_le_bytes(b[i..i + 8].try_into().unwrap());
        let zero = |x: u64| x.wrapping_sub(ONES) & !x & HIGH;
        let low = v.wrapping_sub(ONES * 0x20) & !v & HIGH;
        let found = low | zero(v ^ (ONES * b'"' as u64)) | zero(v ^ (ONES * b'\\' as u64));
        if found != 0 {
            return i + found.trailing_zeros() as usize / 8;
        }
        i += 8;
    }
    while i < b.len() && b[i] != b'"' && b[i] != b'\\' && b[i] >= 0x20 {
        i += 1;
    }
    i
}

/// A string without escapes, from its opening quote: what is between the quotes is `b[i + 1..end - 1]`.
#[inline(always)]
pub fn plain_string(b: &[u8], i: usize) -> Option<usize> {
    if *b.get(i)? != b'"' {
        return None;
    }
    let end = plain_end(b, i + 1);
    (*b.get(end)? == b'"').then_some(end + 1)
}

/// The characters of a string that may have escapes, from its opening quote. NUL and lone surrogates are Python's.
pub fn string(b: &[u8], i: usize, mut each: impl FnMut(&str)) -> Option<usize> {
    if *b.get(i)? != b'"' {
        return None;
    }
    let mut i = i + 1;
    loop {
        let end = plain_end(b, i);
        each(std::str::from_utf8(&b[i..end]).ok()?);
        match *b.get(end)? {
            b'"' => return Some(end + 1),
            b'\\' => {
                let (found, next) = escaped(b, end + 1)?;
                each(found.encode_utf8(&mut [0; 4]));
                i = next;
            }
            _ => return None,
        }
    }
}

fn escaped(b: &[u8], i: usize) -> Option<(char, usize)> {
    let found = match *b.get(i)? {
        c @ (b'"' | b'/' | b'\\') => c as char,
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unicode(b, i + 1),
        _ => return None,
    };
    Some((found, i + 1))
}

fn unicode(b: &[u8], i: usize) -> Option<(char, usize)> {
    let (mut code, mut i) = (hex4(b, i)?, i + 4);
    if (0xd800..0xdc00).contains(&code) {
        if b.get(i..i + 2)? != b"\\u" {
            return None;
        }
        let low = hex4(b, i + 2)?;
        if !(0xdc00..0xe000).contains(&low) {
            return None;
        }
        (code, i) = (0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00), i + 6);
    }
    char::from_u32(code)
        .filter(|&found| found != '\0')
        .map(|found| (found, i))
}

fn hex4(b: &[u8], i: usize) -> Option<u32> {
    b.get(i..i + 4)?
        .iter()
        .try_fold(0, |sum, &c| Some(sum << 4 | (c as char).to_digit(16)?))
}

/// An integer of at most 18 digits that is not `-0`.
#[inline(always)]
pub fn integer(b: &[u8], start: usize) -> Option<usize> {
    let (end, is_integer) = number(b, start)?;
    let digits = end - start - (b[start] == b'-') as usize;
    (is_integer && digits <= 18 && &b[start..end] != b"-0").then_some(end)
}

/// A number by JSON's grammar; whether it is an integer.
#[inline(always)]
pub fn number(b: &[u8], start: usize) -> Option<(usize, bool)> {
    let mut i = start + (*b.get(start)? == b'-') as usize;
    let first = i;
    i = digits(b, i)?;
    if b[first] == b'0' && i - first > 1 {
        return None;
    }
    let end = i;
    if b.get(i) == Some(&b'.') {
        i = digits(b, i + 1)?;
    }
    if matches!(b.get(i), Some(b'e' | b'E')) {
        i += 1 + matches!(b.get(i + 1), Some(b'+' | b'-')) as usize;
        i = digits(b, i)?;
    }
    Some((i, i == end))
}

#[inline(always)]
fn digits(b: &[u8], start: usize) -> Option<usize> {
    let mut i = start;
    while i < b.len() && b[i].is_ascii_digit() {
        i += 1;
    }
    (i > start).then_some(i)
}

/// A literal: `true`, `false`, `null`.
#[inline(always)]
pub fn literal(b: &[u8], i: usize, word: &[u8]) -> Option<usize> {
    b[i..].starts_with(word).then_some(i + word.len())
}

/// The members of an array or an object, from its opening bracket; `each` reads one.
pub fn members(b: &[u8], i: usize, mut each: impl FnMut(usize) -> Option<usize>) -> Option<usize> {
    let end = match *b.get(i)? {
        b'{' => b'}',
        b'[' => b']',
        _ => return None,
    };
    let mut i = white_space(b, i + 1);
    if *b.get(i)? == end {
        return Some(i + 1);
    }
    loop {
        i = white_space(b, each(i)?);
        match *b.get(i)? {
            b',' => i = white_space(b, i + 1),
            c if c == end => return Some(i + 1),
            _ => return None,
        }
    }
}

/// From the end of a member's name to the begin of its value.
#[inline(always)]
pub fn after_name(b: &[u8], i: usize) -> Option<usize> {
    let i = white_space(b, i);
    (*b.get(i)? == b':').then(|| white_space(b, i + 1))
}

/// Any value: one of a field that the type does not have.
pub fn skip(b: &[u8], i: usize, depth: u32) -> Option<usize> {
    match *b.get(i)? {
        b'"' => plain_string(b, i),
        b't' => literal(b, i, b"true"),
        b'f' => literal(b, i, b"false"),
        b'n' => literal(b, i, b"null"),
        _ if depth == 0 => None,
        b'[' => members(b, i, |i| skip(b, i, depth - 1)),
        b'{' => members(b, i, |i| skip(b, after_name(b, plain_string(b, i)?)?, depth - 1)),
        _ => integer(b, i),
    }
}
