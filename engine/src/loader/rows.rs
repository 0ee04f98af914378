//! The rows of a batch in the making: a payload or a cached record becomes what the batch delivers.

use super::Feed;
use super::timesheet::{Timesheet, Work};
use crate::error::{Error, Result};
use crate::source::{Decoder, Payload, Scratch, picture_and_tail};
use crate::staging::Field;
use crate::types::SampleId;

/// The rows of a batch while they are being filled.
pub(super) struct Rows<'a> {
    pub(super) feed: &'a Feed,
    pub(super) data: &'a mut [u8],
    pub(super) target: &'a mut [u8],
    /// Where the arrays of a sample go.
    pub(super) fields: &'a [Field],
    /// By row; empty where samples have none.
    pub(super) tails: Vec<Box<[u8]>>,
    pub(super) data_bytes: usize,
    pub(super) target_bytes: usize,
    pub(super) ids: &'a [SampleId],
    /// What the batch's draws have in common.
    pub(super) key: u64,
    pub(super) sheet: &'a Timesheet,
}

impl Rows<'_> {
    /// Row `row` of samples of one array, and its target.
    fn at(&mut self, row: usize) -> (&mut [u8], &mut [u8]) {
        let (d, t) = (self.data_bytes, self.target_bytes);
        (&mut self.data[row * d..(row + 1) * d], &mut self.target[row * t..(row + 1) * t])
    }

    /// Fills a row from a cached record.
    pub(super) fn unpack(&mut self, row: usize, record: &[u8], scratch: &mut Scratch) -> Result<()> {
        let (payload, target) = record.split_at(record.len() - self.target_bytes);
        let encoded = self.feed.keeps_encoded();
        self.write(row, &Payload::new(payload, target), encoded, scratch)
    }

    /// Takes the target of a record whose sample stays where it is; false for a record of another size than the row's.
    pub(super) fn leave(&mut self, row: usize, record: &[u8]) -> bool {
        let (data_bytes, target_bytes) = (self.data_bytes, self.target_bytes);
        let fits = record.len() == data_bytes + target_bytes;
        if fits {
            self.at(row).1.copy_from_slice(&record[data_bytes..]);
        }
        fits
    }

    /// Fills a row from a payload that is not encoded.
    pub(super) fn copy(&mut self, row: usize, payload: &Payload<'_>, scratch: &mut Scratch) -> Result<()> {
        let feed = self.feed;
        if payload.target.len() != self.target_bytes {
            return Err(self.wrong_target(payload));
        }
        let wanted = feed.records.decoded_bytes();
        if payload.data.len() < wanted || (payload.data.len() > wanted && !feed.records.tailed()) {
            return Err(Error::sample(format!(
                "sample has {} bytes, the dataset's samples have {wanted}{}",
                payload.data.len(),
                if feed.records.tailed() { " at least" } else { "" }
            )));
        }
        if feed.images.is_none() && feed.scatters() {
            self.scatter(row, payload);
            return Ok(());
        }
        let (pixels, tail) = payload.data.split_at(wanted);
        // What is decoded has the dataset's size.
        let size = feed.decoder.as_ref().map_or([0; 2], Decoder::size);
        self.deliver_tail(row, size, tail, scratch)?;
        let (sheet, key, id) = (self.sheet, self.key, i64::from(self.ids[row]));
        let (data, target) = self.at(row);
        target.copy_from_slice(payload.target);
        if let Some(images) = &feed.images {
            let before = sheet.turn(Work::Decode);
            let made = images.make((key, id), pixels, data, scratch);
            sheet.turn(before);
            made
        } else {
            // A plain copy stays on the account it is done for: reading the clock twice a row would cost as much.
            data.copy_from_slice(pixels);
            Ok(())
        }
    }

    /// Puts the arrays of a sample where they belong.
    fn scatter(&mut self, row: usize, payload: &Payload<'_>) {
        for field in self.fields {
            self.data[field.row(row)].copy_from_slice(&payload.data[field.own()]);
        }
        let bytes = self.target_bytes;
        self.target[row * bytes..(row + 1) * bytes].copy_from_slice(payload.target);
        self.set_tail(row, &payload.data[self.feed.records.decoded_bytes()..]);
    }

    /// The same for a sample whose image has `size`, which masks and boxes go with.
    fn deliver_tail(&mut self, row: usize, size: [usize; 2], tail: &[u8], scratch: &mut Scratch) -> Result<()> {
        let Some(beside) = &self.feed.beside else {
            self.set_tail(row, tail);
            return Ok(());
        };
        let before = self.sheet.turn(Work::Decode);
        let made = beside.tail((self.key, i64::from(self.ids[row])), size, tail, scratch);
        self.sheet.turn(before);
        if let Some(place) = self.tails.get_mut(row) {
            *place = made?;
        }
        Ok(())
    }

    fn set_tail(&mut self, row: usize, tail: &[u8]) {
        if let Some(place) = self.tails.get_mut(row) {
            *place = tail.into();
        }
    }

    fn wrong_target(&self, payload: &Payload<'_>) -> Error {
        Error::sample(format!(
            "target has {} bytes, the dataset's targets have {}",
            payload.target.len(),
            self.target_bytes
        ))
    }

    /// Fills a row from a payload, decoding it if it is encoded.
    pub(super) fn write(
        &mut self,
        row: usize,
        payload: &Payload<'_>,
        encoded: bool,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let feed = self.feed;
        let Some(decoder) = feed.decoder.as_ref().filter(|_| encoded) else { return self.copy(row, payload, scratch) };
        if payload.target.len() != self.target_bytes {
            return Err(self.wrong_target(payload));
        }
        let tailed = feed.records.tailed();
        let (picture, tail) = if tailed { picture_and_tail(payload.data)? } else { (payload.data, &[][..]) };
        let (sheet, key, id) = (self.sheet, self.key, i64::from(self.ids[row]));
        let (data, target) = self.at(row);
        target.copy_from_slice(payload.target);
        let before = sheet.turn(Work::Decode);
        let decoded = match &feed.images {
            None => decoder.decode(picture, data, scratch),
            Some(images) => images.decode((key, id), decoder, picture, data, scratch),
        };
        sheet.turn(before);
        decoded?;
        self.deliver_tail(row, scratch.size, tail, scratch)?;
        if tailed && !feed.keeps_encoded() {
            // What is kept of it: the pixels, and the tail behind them.
            if feed.images.is_none() {
                scratch.decoded.clear();
                scratch.decoded.extend_from_slice(self.at(row).0);
            }
            scratch.decoded.extend_from_slice(tail);
        }
        Ok(())
    }

    /// What the cache keeps of the payload just written to `row`.
    pub(super) fn kept<'b>(&'b mut self, row: usize, payload: &Payload<'b>, scratch: &'b Scratch) -> &'b [u8] {
        match (&self.feed.decoder, &self.feed.images) {
            (None, _) => payload.data,
            _ if self.feed.keeps_encoded() => payload.data,
            (Some(_), Some(_)) => &scratch.decoded,
            (Some(_), None) if self.feed.records.tailed() => &scratch.decoded,
            (Some(_), None) => self.at(row).0,
        }
    }
}
