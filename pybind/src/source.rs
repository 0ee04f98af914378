//! Sources as Python holds them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lossfeed::engine::Dataset;
use lossfeed::settings::CacheForm;
use lossfeed::source::{
    self, Arrays, Column, DiskTier, Form, ImageMode, Labels, LimitBy, OpenOptions, PieceKind, Place, PoolTier, Records,
    Resize, Throttle, Values,
};
use lossfeed::{Dtype, Error, SampleId};
use pyo3::prelude::*;

use crate::buffer::{Buffer, Input};
use crate::errors::{contract, outside, raise};
use crate::opening::interruptibly;
use crate::progress::Progress;
use crate::spec::{self, PySpec};

/// An opened dataset and how its samples are decoded. Cheap to share; it keeps nothing in memory but the index.
#[pyclass(frozen, module = "lossfeed._native")]
pub(crate) struct Source {
    pub(crate) dataset: Dataset,
}

impl Source {
    /// Looks at the first sample, if need be, to know the shape of all.
    pub(crate) fn wrap(
        py: Python<'_>,
        source: Arc<dyn source::Source>,
        mode: &str,
        resize: Option<Resize>,
    ) -> PyResult<Self> {
        let mode = mode_of(mode)?;
        let dataset = outside(py, move || Dataset::new(source, mode, resize))?;
        Ok(Self { dataset })
    }
}

fn mode_of(name: &str) -> PyResult<ImageMode> {
    match name {
        "auto" => Ok(ImageMode::Auto),
        "rgb" => Ok(ImageMode::Rgb),
        "gray" => Ok(ImageMode::Gray),
        other => Err(raise(Error::settings(format!("mode {other:?} is unknown: use auto, rgb or gray")))),
    }
}

#[pymethods]
impl Source {
    fn __len__(&self) -> usize {
        self.dataset.source.len()
    }

    /// The dataset in words: its URL without secrets, or what it is made of.
    fn describe(&self) -> String {
        self.dataset.source.describe().to_owned()
    }

    /// What a person would call sample `id`.
    fn name(&self, id: SampleId) -> String {
        self.dataset.source.name(id)
    }

    /// Class names by label; empty when labels are plain numbers.
    #[getter]
    fn classes(&self) -> Vec<String> {
        self.dataset.source.classes().to_vec()
    }

    /// int64 labels of all samples, where they are known without reading any.
    #[getter]
    fn labels(&self) -> Option<Buffer> {
        self.dataset.source.labels().map(|labels| Buffer::from_vec(labels.to_vec()))
    }

    /// (dtype, shape) of one delivered sample.
    #[getter]
    fn spec(&self) -> PySpec {
        spec::to_python(self.dataset.spec())
    }

    /// (dtype, shape) of each array of one delivered sample.
    #[getter]
    fn fields(&self) -> Vec<PySpec> {
        self.dataset.fields().iter().map(spec::to_python).collect()
    }

    /// (dtype, shape) of one target.
    #[getter]
    fn target_spec(&self) -> PySpec {
        spec::to_python(self.dataset.source.target_spec())
    }

    /// The form in which its samples are cached unless another is asked for.
    fn better_form(&self, py: Python<'_>) -> PyResult<&'static str> {
        outside(py, || Ok(self.dataset.better_form().name()))
    }

    /// Cache bytes that every sample together would take, in `form` ("encoded" or "decoded").
    fn cache_bytes(&self, py: Python<'_>, form: &str) -> PyResult<u64> {
        let form = CacheForm::from_name(form).map_err(raise)?;
        outside(py, || Ok(self.dataset.records(form).total_footprint()))
    }

    /// The samples `ids` as a dataset of their own, in that order.
    fn subset(&self, py: Python<'_>, ids: Vec<SampleId>) -> PyResult<Self> {
        let Dataset { source, decoder } = self.dataset.clone();
        let subset = outside(py, || source::Subset::new(source, ids))?;
        Ok(Self { dataset: Dataset { source: Arc::new(subset), decoder } })
    }

    /// `first` samples chosen by `seed`, and the others.
    fn split(&self, py: Python<'_>, first: usize, seed: u64) -> PyResult<(Self, Self)> {
        let Dataset { source, decoder } = self.dataset.clone();
        let (first, rest) = outside(py, || source::Subset::split(source, first, seed))?;
        let wrap = |subset| Self { dataset: Dataset { source: Arc::new(subset), decoder: decoder.clone() } };
        Ok((wrap(first), wrap(rest)))
    }

    /// This dataset and `others` after it, as one.
    fn concat(&self, py: Python<'_>, others: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        let parts: Vec<Dataset> =
            std::iter::once(self.dataset.clone()).chain(others.iter().map(|other| other.dataset.clone())).collect();
        drop(others);
        Ok(Self { dataset: outside(py, || Dataset::concat(&parts))? })
    }

    /// Sets the most bytes a second that come from its store; false if it has none.
    fn limit(&self, py: Python<'_>, bytes_per_s: Option<u64>) -> PyResult<bool> {
        outside(py, || Ok(self.dataset.source.limit(bytes_per_s, LimitBy::User)))
    }

    /// Data and target of sample `id`, as they are delivered.
    fn sample(&self, py: Python<'_>, id: SampleId) -> PyResult<(Buffer, Buffer)> {
        let (data, target) = outside(py, || self.dataset.read(id))?;
        Ok((Buffer::from_vec(data), Buffer::from_vec(target)))
    }

    /// The same with a black picture, whatever the size of the sample's own.
    fn beside(&self, py: Python<'_>, id: SampleId) -> PyResult<(Buffer, Buffer)> {
        let (data, target) = outside(py, || self.dataset.read_beside(id))?;
        Ok((Buffer::from_vec(data), Buffer::from_vec(target)))
    }

    /// What samples are made of, as (name, kind, dtype of its numbers or ""); empty for pairs of one array and a
    /// target.
    #[getter]
    fn pieces(&self) -> Vec<(&str, &'static str, &'static str)> {
        let of = |piece: &source::Piece| piece.kind.dtype().map_or("", |dtype| dtype.name());
        self.dataset.source.pieces().iter().map(|piece| (piece.name.as_str(), piece.kind.name(), of(piece))).collect()
    }

    /// (height, width) of so many images at most, by their headers; empty where looking is not cheap.
    fn sizes(&self, py: Python<'_>, most: usize) -> PyResult<Vec<(usize, usize)>> {
        let found = outside(py, || Ok(source::sizes(&*self.dataset.source, most)))?;
        Ok(found.into_iter().map(|[height, width]| (height, width)).collect())
    }

    /// Whether samples are encoded images.
    #[getter]
    fn images(&self) -> bool {
        matches!(self.dataset.source.form(), Form::Images { .. })
    }
}

/// `text` without what its addresses carry in secret.
#[pyfunction]
pub(crate) fn without_secrets(text: &str) -> String {
    lossfeed::source::without_secrets(text)
}

/// Name and meaning of every kind of URL that is opened.
#[pyfunction]
pub(crate) fn schemes() -> Vec<(&'static str, &'static str)> {
    source::SCHEMES.iter().map(|scheme| (scheme.name, scheme.help)).collect()
}

/// Opens a directory, tar shards or a URL.
#[pyfunction]
#[pyo3(signature = (url, *, mode, resize, crop, latency_s, bandwidth_bytes_per_s, connections, index_cache, store_options, timeout_s, retry_timeout_s, checksums, coalesce, hedge, disk, pool, fields, chaos))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn open_source(
    py: Python<'_>,
    url: &str,
    mode: &str,
    resize: Option<(usize, usize)>,
    crop: Option<(usize, usize)>,
    latency_s: f64,
    bandwidth_bytes_per_s: Option<u64>,
    connections: usize,
    index_cache: Option<PathBuf>,
    store_options: Vec<(String, String)>,
    timeout_s: Option<f64>,
    retry_timeout_s: f64,
    checksums: bool,
    coalesce: bool,
    hedge: bool,
    disk: Option<(PathBuf, u64)>,
    pool: Option<(String, u64, f64)>,
    fields: Vec<String>,
    chaos: Option<u64>,
) -> PyResult<Source> {
    let seconds = |name: &str, s: f64| {
        Duration::try_from_secs_f64(s).map_err(|_| {
            raise(Error::settings(format!("{name}={s} is not a time in seconds: give a number of at least 0")))
        })
    };
    let latency = seconds("latency", latency_s)?;
    let throttle =
        (!latency.is_zero() || bandwidth_bytes_per_s.is_some()).then_some(Throttle { latency, bandwidth_bytes_per_s });
    let timeout = match timeout_s {
        Some(s) => Some(seconds("timeout", s)?),
        None => OpenOptions::default().timeout,
    };
    let retry_timeout = seconds("retry_timeout", retry_timeout_s)?;
    let disk = disk.map(|(folder, bytes)| DiskTier { folder, bytes });
    let pool = match pool {
        None => None,
        Some((url, bytes, ttl_s)) => Some(PoolTier { url, bytes, ttl: seconds("pool_ttl", ttl_s)? }),
    };
    let progress = Progress::of(url);
    let options = OpenOptions {
        throttle,
        connections,
        index_cache,
        store_options,
        timeout,
        retry_timeout,
        checksums,
        coalesce,
        hedge,
        fields,
        disk,
        pool,
        chaos,
        on_shard: Some(progress.on_shard()),
        ..OpenOptions::default()
    };
    let (url, mode, resize) = (url.to_owned(), mode_of(mode)?, resize.map(|to| Resize { to, crop }));
    let stop = options.stop.clone();
    let dataset =
        interruptibly(py, &stop, progress, move || Dataset::new(source::open(&url, &options)?, mode, resize))?;
    Ok(Source { dataset })
}

/// A column of a table: its name, kind and values; `files` says that text names files.
#[derive(FromPyObject)]
pub(crate) struct PyColumn {
    name: String,
    kind: String,
    files: bool,
    values: PyValues,
}

#[derive(FromPyObject)]
enum PyValues {
    Text(Vec<String>),
    Whole(Vec<i64>),
    Real(Vec<f64>),
}

impl PyColumn {
    fn column(self) -> PyResult<Column> {
        let Self { name, kind, files, values } = self;
        let kind = match (kind.as_str(), &values) {
            ("picture", _) => PieceKind::Picture,
            ("text", _) => PieceKind::Text,
            ("json", _) => PieceKind::Json,
            ("npy", _) => PieceKind::Npy,
            ("bytes", _) => PieceKind::Bytes,
            ("number", PyValues::Whole(_)) => PieceKind::Number(Dtype::I64),
            ("number", PyValues::Real(_)) => PieceKind::Number(Dtype::F64),
            (other, _) => return Err(contract(format!("a column is {other:?}"))),
        };
        let values = match values {
            PyValues::Text(all) if files => Values::Files(all),
            PyValues::Text(all) => Values::Text(all),
            PyValues::Whole(all) => Values::Whole(all),
            PyValues::Real(all) => Values::Real(all),
        };
        Ok(Column { name, kind, values })
    }
}

/// A dataset of files and values that are named one by one.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // Python passes them by name
pub(crate) fn table_source(
    py: Python<'_>,
    url: String,
    root: PathBuf,
    columns: Vec<PyColumn>,
    labels: Option<(Vec<i64>, Vec<String>)>,
    mode: &str,
    resize: Option<(usize, usize)>,
    crop: Option<(usize, usize)>,
    checksums: bool,
) -> PyResult<Source> {
    let columns = columns.into_iter().map(PyColumn::column).collect::<PyResult<Vec<_>>>()?;
    let labels = labels.map(|(labels, classes)| Labels { labels, classes });
    let (mode, resize) = (mode_of(mode)?, resize.map(|to| Resize { to, crop }));
    let options = OpenOptions { checksums, ..OpenOptions::default() };
    let stop = options.stop.clone();
    let dataset = interruptibly(py, &stop, Progress::of(&url), move || {
        Dataset::new(source::open_table(url, root, columns, labels, &options)?, mode, resize)
    })?;
    Ok(Source { dataset })
}

/// The names of all files below a directory, in the order of ids.
#[pyfunction]
pub(crate) fn files_below(py: Python<'_>, root: PathBuf) -> PyResult<Vec<String>> {
    let stop = OpenOptions::default().stop;
    let asked = stop.clone();
    let progress = Progress::of(&root.to_string_lossy());
    interruptibly(py, &stop, progress, move || source::files_below(&root, &asked))
}

/// Where an array's rows lie in a file: its path, the offset of the first, and the distance from one to the next if
/// that is not a row's size; and a row.
type PyPlace = (PathBuf, u64, Option<u64>, PySpec);

/// A dataset of rows in files: arrays of data, and one of targets or none.
#[pyfunction]
pub(crate) fn record_source(
    py: Python<'_>,
    data: Vec<PyPlace>,
    target: Option<PyPlace>,
    samples: usize,
) -> PyResult<Source> {
    let place = |(path, offset, stride, of): PyPlace| {
        Ok::<_, PyErr>(Place { path, offset, stride, spec: spec::from_python(of)? })
    };
    let data = data.into_iter().map(place).collect::<PyResult<Vec<_>>>()?;
    let target = target.map(place).transpose()?;
    let records = outside(py, || Records::open(data, target, samples))?;
    Source::wrap(py, Arc::new(records), "auto", None)
}

/// A dataset of arrays in memory, one or several of data and one of targets; all are borrowed, not copied, for as long
/// as the source lives.
#[pyfunction]
pub(crate) fn array_source(
    py: Python<'_>,
    data: Vec<(Bound<'_, PyAny>, PySpec)>,
    target: &Bound<'_, PyAny>,
    target_spec: PySpec,
    samples: usize,
) -> PyResult<Source> {
    let (target, target_spec) = (Input::get(target)?, spec::from_python(target_spec)?);
    let data = data.into_iter().map(|(array, spec)| Ok((Input::get(&array)?, spec::from_python(spec)?)));
    let mut data = data.collect::<PyResult<Vec<_>>>()?;
    let arrays = outside(py, || match data.pop() {
        Some((only, spec)) if data.is_empty() => Arrays::new(only, spec, target, target_spec, samples),
        last => {
            data.extend(last);
            let data = data.into_iter().map(|(array, spec)| (Box::new(array) as _, spec)).collect();
            Arrays::of_fields(data, target, target_spec, samples)
        }
    })?;
    Source::wrap(py, Arc::new(arrays), "auto", None)
}
