//! Beliefs that several ranks share, and what each has in its cache.
//!
//! A rank of such a run keeps two tables: what all ranks agreed on at the last exchange, and that with what it has
//! learned since, by which its own cache goes. Orders are drawn from the first. At an exchange every rank gives what it
//! has learned, and everyone puts all of it together in one order: by step, then rank, then as it came. So all tables
//! are equal again, whatever arrived where and when.

use std::sync::Arc;

use super::{Control, Held, PIECE, tell};
use crate::error::{Error, Result};
use crate::index::{ScoreTable, Standing};
use crate::types::SampleId;

/// Something that a rank has learned about a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct News {
    /// Whom it is about.
    pub id: SampleId,
    /// What it is.
    pub what: What,
    /// Batches that the rank had scored before.
    pub step: u32,
}

/// What can be learned about a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// It was measured: the score, before it is merged into a belief. Finite.
    Score(f32),
    /// It was delivered, and nobody scored it.
    Tried,
    /// It could not be read.
    Failed,
    /// It was read after all.
    Read,
}

impl What {
    /// What is no score, as bits of a NaN.
    const STANDINGS: [(Self, u32); 3] =
        [(Self::Tried, 0x7fc0_0001), (Self::Failed, 0x7fc0_0002), (Self::Read, 0x7fc0_0003)];
}

impl News {
    /// As three numbers.
    pub fn to_words(self) -> [u32; 3] {
        let of = |(what, bits): (What, u32)| (what == self.what).then_some(bits);
        let bits = match self.what {
            What::Score(score) => score.to_bits(),
            _ => What::STANDINGS.into_iter().find_map(of).unwrap_or_default(),
        };
        [self.id, bits, self.step]
    }
    /// The inverse, for a dataset of `samples`.
    ///
    /// # Errors
    /// `Settings` for a sample that the dataset has not, or a score that is none.
    pub fn from_words([id, bits, step]: [u32; 3], samples: usize) -> Result<Self> {
        if id as usize >= samples {
            return Err(Error::settings(format!("exchanged score of sample {id} of {samples}: it is damaged")));
        }
        let score = f32::from_bits(bits);
        let standing = What::STANDINGS.into_iter().find(|&(_, of)| of == bits).map(|(what, _)| what);
        let what = standing.or_else(|| score.is_finite().then_some(What::Score(score)));
        let what = what.ok_or_else(|| {
            Error::settings(format!("exchanged score {score} ({bits:#x}) of sample {id}: it is damaged"))
        })?;
        Ok(Self { id, what, step })
    }
    fn tell(self, table: &mut ScoreTable) {
        match self.what {
            What::Score(score) => _ = table.record(self.id, score, self.step),
            What::Tried => _ = table.tried(self.id),
            What::Failed => table.fail(self.id),
            What::Read => table.recover(self.id),
        }
    }
}

/// Puts what ranks have learned into the table that they share: by step, then rank, then as it came.
pub fn merge(table: &mut ScoreTable, ranks: &[Vec<News>]) {
    let mut all = ranks.concat();
    all.sort_by_key(|news| news.step); // keeps what is equal in its order
    all.into_iter().for_each(|news| news.tell(table));
}

/// The facts that all ranks agreed on at the last exchange: orders are drawn from them.
#[derive(Clone)]
pub struct Shared {
    /// Beliefs.
    pub table: Arc<ScoreTable>,
    /// Each rank's cached samples.
    pub held: Arc<Held>,
}

/// What a rank shares.
pub(super) struct Exchange {
    shared: Shared,
    /// What was given to the others and has not come back merged.
    given: Arc<Vec<News>>,
    /// What was learned since.
    learned: Vec<News>,
}

impl Exchange {
    #[inline]
    pub(super) fn learned(&mut self, news: News) {
        self.learned.push(news);
    }
    pub(super) fn metadata_bytes(&self) -> usize {
        self.shared.table.metadata_bytes() + (self.given.capacity() + self.learned.capacity()) * size_of::<News>()
    }
}

impl Control {
    /// The same as a rank that shares what it learns with others.
    pub fn with_exchange(self) -> Self {
        let shared = Shared { table: Arc::new(self.scores.clone()), held: Arc::default() };
        Self { exchange: Some(Box::new(Exchange { shared, given: Arc::default(), learned: Vec::new() })), ..self }
    }
    /// The facts that all ranks agreed on at the last exchange; `None` in a run that shares nothing.
    pub fn shared(&self) -> Option<Shared> {
        self.exchange.as_ref().map(|exchange| exchange.shared.clone())
    }
    /// A bit for each of [`PIECE`] samples from `first` on, set for residents; none while the books are lent.
    pub fn residents(&self, first: usize) -> &[u64] {
        let words = first / 64..(first + PIECE).min(self.scores.len()).div_ceil(64);
        self.ledger().map_or(&[], |ledger| ledger.resident_set().words(words))
    }
    /// What this rank has learned since the last exchange, all of it until [`Self::share_merged`] is called. Nothing in
    /// a run that shares nothing.
    pub fn news(&mut self) -> Arc<Vec<News>> {
        let Some(exchange) = &mut self.exchange else { return Arc::default() };
        if exchange.given.is_empty() {
            exchange.given = Arc::new(std::mem::take(&mut exchange.learned));
        } else if !exchange.learned.is_empty() {
            // An exchange that came to nothing, or a state was taken: rare.
            Arc::make_mut(&mut exchange.given).append(&mut exchange.learned);
        }
        Arc::clone(&exchange.given)
    }
    /// The exchange is over: all ranks agreed on `shared`, and this one's beliefs are those
    /// ([`Self::replace_beliefs`]). What was learned since [`Self::news`] is put on top, and is given at the next
    /// exchange.
    pub fn share_merged(&mut self, shared: Shared) {
        let Some(exchange) = &mut self.exchange else { return };
        (exchange.shared, exchange.given) = (shared, Arc::default());
        for news in &exchange.learned {
            news.tell(&mut self.scores);
            if let Standing::Scored(belief) = self.scores.standing(news.id) {
                tell(&mut self.books, news.id, belief);
            }
        }
    }
    /// As a run is resumed: what was shared, and what this rank had not given yet. Its beliefs hold both.
    pub fn share_restored(&mut self, shared: Shared, given: Arc<Vec<News>>) {
        if let Some(exchange) = &mut self.exchange {
            **exchange = Exchange { shared, given, learned: Vec::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::Ledger;
    use crate::policy;

    const SAMPLES: usize = 12;

    /// What happens on one rank at one step.
    #[derive(Debug, Clone)]
    enum Event {
        Scores(Vec<(SampleId, f32)>),
        Read(SampleId, bool),
        Tried(SampleId),
    }

    fn rank() -> Control {
        let ledger = Ledger::new(5, SAMPLES, policy::from_name("importance", SAMPLES).unwrap());
        Control::new(ScoreTable::new(SAMPLES, 0.5), ledger).with_exchange()
    }

    fn happens(control: &mut Control, event: &Event) {
        match event {
            Event::Scores(scores) => _ = control.learn(None, scores.iter().copied()),
            &Event::Read(id, failed) => control.read(0, &[id], &|_| failed),
            &Event::Tried(id) => _ = control.tried(id),
        }
    }

    fn exchange(ranks: &mut [Control]) {
        let news: Vec<Vec<News>> = ranks.iter_mut().map(|rank| rank.news().to_vec()).collect();
        let words = news.iter().map(|news| news.iter().map(|n| n.to_words()).collect::<Vec<_>>());
        let read = |words: Vec<[u32; 3]>| words.into_iter().map(|w| News::from_words(w, SAMPLES).unwrap()).collect();
        assert_eq!(words.map(read).collect::<Vec<Vec<News>>>(), news);
        let step = ranks.iter().map(Control::step).max().unwrap();
        for rank in ranks {
            let mut table = ScoreTable::clone(&rank.shared().unwrap().table);
            merge(&mut table, &news);
            rank.replace_beliefs(table.clone(), step);
            rank.share_merged(Shared { table: Arc::new(table), held: Arc::default() });
        }
    }

    fn look(table: &ScoreTable) -> Vec<(u32, u32)> {
        table.as_slice().iter().map(|b| b.to_bits()).zip(table.stamps().iter().copied()).collect()
    }

    fn event() -> impl Strategy<Value = Event> {
        let id = || 0..SAMPLES as u32;
        let score = prop::sample::select(vec![0.0f32, -1.5, 0.1, 3.0, f32::MAX, f32::NAN]);
        prop_oneof![
            6 => prop::collection::vec((id(), score), 0..5).prop_map(Event::Scores),
            1 => (id(), any::<bool>()).prop_map(|(id, failed)| Event::Read(id, failed)),
            1 => id().prop_map(Event::Tried),
        ]
    }

    proptest! {
        /// Steps of three ranks, each a batch of scores and something else. After an exchange all tables are equal, and
        /// equal to that of one rank which saw everything by step, then rank, then as it came; however many
        /// exchanges there were on the way.
        #[test]
        fn ranks_that_exchange_believe_what_one_would_that_saw_it_all(
            steps in prop::collection::vec(prop::collection::vec((event(), event()), 3), 1..12),
            grouping in prop::collection::vec(any::<bool>(), 12),
        ) {
            let (mut ranks, mut at_once) = ([rank(), rank(), rank()], [rank(), rank(), rank()]);
            let mut one = ScoreTable::new(SAMPLES, 0.5);
            let mut clock = 0;
            for (number, step) in steps.iter().enumerate() {
                for (rank, (before, scores)) in step.iter().enumerate() {
                    let scores = match scores {
                        Event::Scores(_) => scores.clone(),
                        _ => Event::Scores(vec![]),
                    };
                    let before = if let Event::Scores(_) = before { Event::Tried(0) } else { before.clone() };
                    for event in [&before, &scores] {
                        happens(&mut ranks[rank], event);
                        happens(&mut at_once[rank], event);
                        match event {
                            Event::Scores(s) => s.iter().for_each(|&(id, score)| _ = one.record(id, score, clock)),
                            &Event::Read(id, true) => one.fail(id),
                            // What a rank does not know of as failed is no news to it when it can be read.
                            &Event::Read(..) | &Event::Tried(_) => {}
                        }
                    }
                }
                clock += 1;
                if grouping[number] {
                    exchange(&mut ranks);
                    let first = look(ranks[0].scores());
                    let shared = |rank: &Control| look(&rank.shared().unwrap().table);
                    prop_assert!(ranks.iter().all(|r| look(r.scores()) == first && shared(r) == first));
                }
            }
            exchange(&mut ranks);
            exchange(&mut at_once);
            let same = look(ranks[0].scores());
            prop_assert!(ranks.iter().all(|rank| look(rank.scores()) == same));
            prop_assert!(at_once.iter().all(|rank| look(rank.scores()) == look(at_once[0].scores())));
            prop_assert!(ranks.iter().chain(&at_once).all(|rank| rank.step() == clock));
            // Only what depends on what a rank knew itself may differ between groupings: standings, not beliefs alone.
            if steps.iter().flatten().all(|(event, _)| matches!(event, Event::Scores(_))) {
                prop_assert_eq!(&same, &look(at_once[0].scores()));
                let tried = |table: &ScoreTable| (0..SAMPLES as u32).map(|id| table.importance(id)).collect::<Vec<_>>();
                prop_assert_eq!(tried(ranks[0].scores()), tried(&one));
            }
        }
    }

    #[test]
    fn what_is_learned_during_an_exchange_comes_on_top_and_is_given_at_the_next() {
        let mut ranks = [rank(), rank()];
        ranks[0].learn(None, [(1, 4.0)].into_iter());
        let given = [ranks[0].news().to_vec(), ranks[1].news().to_vec()];
        ranks[0].learn(None, [(1, 2.0), (2, 9.0)].into_iter());
        for rank in &mut ranks {
            let mut table = ScoreTable::clone(&rank.shared().unwrap().table);
            merge(&mut table, &given);
            rank.replace_beliefs(table.clone(), 1);
            rank.share_merged(Shared { table: Arc::new(table), held: Arc::default() });
        }
        assert_eq!([0, 1].map(|rank: usize| ranks[rank].scores().importance(1)), [Some(3.0), Some(4.0)]);
        exchange(&mut ranks);
        assert!(ranks.iter().all(|rank| rank.scores().importance(1) == Some(3.0)));
        assert!(ranks.iter().all(|rank| rank.scores().importance(2) == Some(9.0)));
    }

    #[test]
    fn an_exchange_that_came_to_nothing_loses_nothing() {
        let mut ranks = [rank(), rank()];
        ranks[0].learn(None, [(1, 4.0)].into_iter());
        assert_eq!(ranks[0].news().len(), 1);
        ranks[0].learn(None, [(3, 1.0)].into_iter());
        assert_eq!(ranks[0].news().len(), 2);
        exchange(&mut ranks);
        assert_eq!([1, 3].map(|id| ranks[1].scores().importance(id)), [Some(4.0), Some(1.0)]);
        assert!(ranks[0].news().is_empty());
    }

    #[test]
    fn damaged_news_are_refused() {
        for words in [[12, 0, 0], [u32::MAX, 0, 0], [3, f32::NAN.to_bits(), 0], [3, f32::INFINITY.to_bits(), 1]] {
            assert_eq!(News::from_words(words, SAMPLES).unwrap_err().kind(), crate::ErrorKind::Settings, "{words:?}");
        }
    }
}
