//! What a JPEG's headers say, read before the decoder does: of what it cannot read, or reads otherwise than
//! libjpeg-turbo.

use libjpeg_turbo_rs::common::tables::{
    AC_CHROMINANCE_BITS, AC_CHROMINANCE_VALUES, AC_LUMINANCE_BITS, AC_LUMINANCE_VALUES, DC_CHROMINANCE_BITS,
    DC_CHROMINANCE_VALUES, DC_LUMINANCE_BITS, DC_LUMINANCE_VALUES,
};

/// Larger files are not copied to leave their tables out: the copy would cost what the tables do.
const COPIED_MAX: usize = 32 << 10;

/// Coefficients of a block that libjpeg-turbo guesses, by its neighbours, while their bits are not all there.
const SMOOTHED: usize = 10;

/// A component as the frame header has it: identifier, sampling factors, quantization table.
pub(super) type Component = [u8; 3];

pub(super) fn across(component: &Component) -> usize {
    usize::from(component[1] >> 4)
}

pub(super) fn down(component: &Component) -> usize {
    usize::from(component[1] & 15)
}

/// The largest factors of an image's components.
pub(super) fn largest(components: &[Component]) -> (usize, usize) {
    let most = |factor: fn(&Component) -> usize| components.iter().map(factor).max().unwrap_or(1).max(1);
    (most(across), most(down))
}

pub(super) struct Headers<'a> {
    pub(super) components: &'a [Component],
    height: usize,
    width: usize,
    /// Not progressive.
    sequential: bool,
    /// MCUs between restart markers in the first scan; 0 for none.
    interval: usize,
    /// The Huffman tables' segments with their markers, as offsets.
    tables: Vec<(usize, usize)>,
    /// Place of the first scan's header, after its marker.
    scan: usize,
}

impl<'a> Headers<'a> {
    /// `None` for headers that are not well-formed or end early.
    ///
    /// # Errors
    /// The reason, for a kind that is not read.
    pub(super) fn read(encoded: &'a [u8]) -> Result<Option<Self>, String> {
        let mut at = 2;
        let mut interval = 0;
        let mut tables = Vec::new();
        let mut frame = None;
        while let Some((marker, body)) = next_marker(encoded, at) {
            let Some(segment) = segment(encoded, body) else { return Ok(None) };
            match marker {
                // The frame, of one of sixteen kinds; three of the numbers are other markers.
                0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                    let Some(&[bits, h1, h0, w1, w0, count]) = segment.get(2..).and_then(|s| s.first_chunk()) else {
                        return Ok(None);
                    };
                    let components = segment.get(8..8 + 3 * usize::from(count)).map(|c| c.as_chunks().0);
                    let Some(components) = components else { return Ok(None) };
                    check_frame(marker, bits, components)?;
                    let [height, width] = [[h1, h0], [w1, w0]].map(|pair| u16::from_be_bytes(pair).into());
                    frame = Some((components, height, width, marker));
                }
                0xc4 => tables.push((body - 2, body + segment.len())),
                0xdd => interval = interval_of(segment),
                0xda => {
                    let Some((components, height, width, marker)) = frame else { return Ok(None) };
                    let sequential = !matches!(marker, 0xc2 | 0xca);
                    return Ok(Some(Self { components, height, width, sequential, interval, tables, scan: body }));
                }
                _ => {}
            }
            at = body + segment.len();
        }
        Ok(None)
    }

    /// Whether an end marker comes after the first scan began. (Thumbnails before it have end markers of their own.)
    /// From the end: writers may pad a file after the marker.
    pub(super) fn ended(&self, encoded: &[u8]) -> bool {
        encoded.get(self.scan..).is_some_and(|scans| scans.windows(2).rev().any(|w| w == [0xff, 0xd9]))
    }

    /// The decoder widens components by the first one's factors, and four as if the last was like the first.
    pub(super) fn needs_planes(&self) -> bool {
        let widest = largest(self.components);
        self.components.len() == 4 || self.components.first().is_some_and(|c| (across(c), down(c)) != widest)
    }

    /// The file without its Huffman tables, where they are those that the decoder takes for missing ones and has built
    /// already: building them is two fifths of the work on an image of 32 × 32.
    pub(super) fn without_standard_tables(&self, encoded: &[u8]) -> Option<Vec<u8>> {
        let plain = self.sequential && scan_components(encoded, self.scan) == Some(self.components.len());
        if !plain || encoded.len() > COPIED_MAX || self.tables.is_empty() {
            return None;
        }
        let mut kept = Vec::with_capacity(encoded.len());
        let mut from = 0;
        for &(start, end) in &self.tables {
            standard(encoded.get(start + 4..end)?)?;
            kept.extend_from_slice(encoded.get(from..start)?);
            from = end;
        }
        kept.extend_from_slice(encoded.get(from..)?);
        Some(kept)
    }

    /// Walks through the scans of a file that has several, or restart markers.
    ///
    /// # Errors
    /// The reason for not reading them.
    pub(super) fn check_scans(&self, encoded: &[u8]) -> Result<(), String> {
        let count = self.components.len();
        if self.interval == 0 && self.sequential && scan_components(encoded, self.scan) == Some(count) {
            return Ok(());
        }
        let (mut scan, mut interval) = (self.scan, self.interval);
        // The bits that are still to come of each component's first coefficients.
        let mut missing = vec![[u8::MAX; SMOOTHED]; if self.sequential { 0 } else { count }];
        // What is not well-formed is left to the decoder.
        while let (Some(header), Some(members)) = (segment(encoded, scan), scan_components(encoded, scan)) {
            if self.sequential && members > 1 && members < count {
                return Err(format!(
                    "it holds {count} colour components, {members} of them in one scan and the rest in others"
                ));
            }
            self.progress(header, members, &mut missing)?;
            let mut at = scan + header.len();
            let mut restarts = 0;
            let (marker, mut body) = loop {
                match next_marker(encoded, at) {
                    Some((marker @ 0xd0..=0xd7, body)) => {
                        if usize::from(marker & 7) != restarts % 8 {
                            return Err(format!("its restart marker {restarts} is missing or out of order"));
                        }
                        restarts += 1;
                        at = body;
                    }
                    Some(other) => break other,
                    None => return Ok(()),
                }
            };
            let mcus = self.mcus(header.get(3).copied(), members);
            // Some writers put one after the last MCU too.
            let expected = mcus.saturating_sub(1).checked_div(interval).unwrap_or(0);
            if interval > 0 && restarts != expected && restarts != expected + 1 {
                return Err(format!("it has {restarts} restart markers in a scan that needs {expected}"));
            }
            // To the next scan, over tables and comments.
            let mut marker = marker;
            while marker != 0xda {
                let Some(segment) = segment(encoded, body).filter(|_| marker != 0xd9) else {
                    // The decoder smooths what comes without them, but not its planes.
                    let coarse = self.needs_planes() && missing.iter().flatten().any(|&bits| bits > 0);
                    return if coarse { Err("its last progressive scans are missing".to_owned()) } else { Ok(()) };
                };
                if marker == 0xdd {
                    interval = interval_of(segment);
                }
                let Some(next) = next_marker(encoded, body + segment.len()) else { return Ok(()) };
                (marker, body) = next;
            }
            scan = body;
        }
        Ok(())
    }

    /// Notes what a progressive scan brings.
    ///
    /// # Errors
    /// For parameters that no scan may have.
    fn progress(&self, header: &[u8], members: usize, missing: &mut [[u8; SMOOTHED]]) -> Result<(), String> {
        let Some(&[first, last, bits]) = header.get(3 + 2 * members..).and_then(|end| end.first_chunk()) else {
            return Ok(());
        };
        if missing.is_empty() {
            return Ok(());
        }
        let (before, after) = (bits >> 4, bits & 15);
        let band = if first == 0 { last == 0 } else { members == 1 && (first..=63).contains(&last) };
        if !band || after > 13 || (before != 0 && before != after + 1) {
            return Err(format!(
                "a scan has coefficients {first} to {last}, bits {before} to {after}, which no scan may have"
            ));
        }
        let listed = |id: u8| header.get(3..3 + 2 * members).is_some_and(|m| m.iter().step_by(2).any(|&of| of == id));
        for (component, missing) in self.components.iter().zip(missing) {
            let brought = missing.get_mut(usize::from(first)..SMOOTHED.min(usize::from(last) + 1));
            if let Some(brought) = brought.filter(|_| listed(component[0])) {
                brought.fill(after);
            }
        }
        Ok(())
    }

    /// MCUs in a scan: of one component its own blocks, else as many as the largest factors make.
    fn mcus(&self, first: Option<u8>, members: usize) -> usize {
        let (widest, tallest) = largest(self.components);
        match self.components.iter().find(|component| members == 1 && Some(component[0]) == first) {
            Some(c) => {
                (self.width * across(c)).div_ceil(widest).div_ceil(8)
                    * (self.height * down(c)).div_ceil(tallest).div_ceil(8)
            }
            None => self.width.div_ceil(8 * widest) * self.height.div_ceil(8 * tallest),
        }
    }
}

/// The number of components in a scan.
fn scan_components(encoded: &[u8], scan: usize) -> Option<usize> {
    encoded.get(scan + 2).map(|&count| count.into())
}

fn check_frame(marker: u8, bits: u8, components: &[Component]) -> Result<(), String> {
    if !matches!(marker, 0xc0..=0xc2 | 0xc9 | 0xca) {
        let kind = if matches!(marker, 0xc3 | 0xcb) { "lossless" } else { "hierarchical" };
        return Err(format!("it uses {kind} coding"));
    }
    if bits != 8 {
        return Err(format!("its samples have {bits} bits, not 8"));
    }
    if !matches!(components.len(), 1 | 3 | 4) {
        return Err(format!("it has {} colour components, not 1, 3 or 4", components.len()));
    }
    let (widest, tallest) = largest(components);
    let divides = |c: &Component| {
        matches!((across(c), down(c)), (1..=4, 1..=4)) && widest % across(c) == 0 && tallest % down(c) == 0
    };
    if components.iter().all(divides) {
        return Ok(());
    }
    let factors: Vec<String> = components.iter().map(|c| format!("{}x{}", across(c), down(c))).collect();
    Err(format!("its components are sampled by {}, which are not multiples of one another", factors.join(", ")))
}

/// The next marker from here on, as libjpeg finds it: other bytes are passed over, and `ff 00` and repeated `ff`. With
/// the place after it.
fn next_marker(encoded: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += encoded.get(at..)?.iter().position(|&byte| byte == 0xff)?;
        at += encoded.get(at..)?.iter().position(|&byte| byte != 0xff)?;
        match encoded.get(at)? {
            0 => at += 1,
            &marker => return Some((marker, at + 1)),
        }
    }
}

/// A marker's segment, which begins with its length.
fn segment(encoded: &[u8], at: usize) -> Option<&[u8]> {
    let rest = encoded.get(at..)?;
    let length = usize::from(u16::from_be_bytes(*rest.first_chunk()?));
    rest.get(..length).filter(|_| length >= 2)
}

fn interval_of(segment: &[u8]) -> usize {
    segment.get(2..).and_then(|s| s.first_chunk()).map_or(0, |&pair| u16::from_be_bytes(pair).into())
}

/// `Some` if all of a segment's tables are those that the standard recommends for their places.
fn standard(mut tables: &[u8]) -> Option<()> {
    while let Some((&place, rest)) = tables.split_first() {
        let (bits, values): (&[u8; 17], &[u8]) = match place {
            0x00 => (&DC_LUMINANCE_BITS, &DC_LUMINANCE_VALUES),
            0x01 => (&DC_CHROMINANCE_BITS, &DC_CHROMINANCE_VALUES),
            0x10 => (&AC_LUMINANCE_BITS, &AC_LUMINANCE_VALUES),
            0x11 => (&AC_CHROMINANCE_BITS, &AC_CHROMINANCE_VALUES),
            _ => return None,
        };
        tables = rest.strip_prefix(&bits[1..])?.strip_prefix(values)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::golden;

    #[test]
    fn tables_that_encoders_write_by_default_are_left_out_and_others_are_not() {
        for (name, left_out) in [("rgb420.jpg", 432), ("rgb444.jpg", 432), ("gray.jpg", 216), ("progressive.jpg", 0)] {
            let encoded = golden(name);
            let headers = Headers::read(&encoded).unwrap().unwrap();
            let shortened = headers.without_standard_tables(&encoded);
            assert_eq!(encoded.len() - shortened.map_or(encoded.len(), |kept| kept.len()), left_out, "{name}");
        }
        let mut other = golden("rgb420.jpg");
        let table = other.windows(2).position(|w| w == [0xff, 0xc4]).unwrap();
        other[table + 40] ^= 1;
        assert!(Headers::read(&other).unwrap().unwrap().without_standard_tables(&other).is_none());
    }
}
