//! From the tensors of a file to a matrix whose rows can be read: which parts a scheme has, and what their shapes must be.

use super::bitsandbytes::{Absmax, FourBits};
use super::float8::{self, Float8};
use super::integers::{Groups, Integers, Sizes, Values, Zeros};
use super::matrix::{MatrixShape, Quantized};
use super::mxfp4::Mxfp4;
use super::parts::{FLOATS, Part, Parts, part};
use super::quant_state::QuantState;
use super::rows::RowReader;
use super::scales::Scales;
use super::scheme::{Number, Scheme, Strategy, TernaryForm, WeightScheme, ZeroPoints};
use super::ternary::{self, ROWS_IN_BYTE};
use crate::checkpoint::escape::escape_for_terminal;
use crate::checkpoint::shards::Shards;
use ropechat_kernels::quant::{BLOCK, StorageType};
use ropechat_platform::error::{Error, Result};

/// A reader of rows, and the bytes of a row in the first part if rows are contiguous there.
type Found<'a> = (Box<dyn RowReader + 'a>, Option<usize>);

/// Names without a value that the model needs: statistics of activations, and what is known from elsewhere.
const COMPANIONS: [&str; 8] = [
    "_shape",
    "_g_idx",
    ".g_idx",
    ".input_scale",
    ".activation_scale",
    ".activation_scale_inv",
    ".weight_format",
    ".bias_scale",
];

/// The name of `name` without `.weight`.
fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The name under which a scheme stores the values of a matrix, if it is not the usual one.
pub(in crate::checkpoint) fn names_of(scheme: &Scheme, name: &str) -> Option<String> {
    match scheme {
        Scheme::Plain | Scheme::Fp8 { .. } | Scheme::BitsAndBytes | Scheme::BitNet { .. } => None,
        Scheme::CompressedTensors(_) => Some(format!("{name}_packed")),
        Scheme::Gptq { .. } | Scheme::Awq { .. } => Some(format!("{}.qweight", module(name))),
        Scheme::Mxfp4 => Some(format!("{name}_blocks")),
    }
}

/// The matrix `name` in the parts of `scheme`; None when it is stored plainly, or not there.
///
/// Errors: `Tensor` for a part that is missing, misshapen or of another type; `Unsupported` for a layout that is not read.
pub(in crate::checkpoint) fn find<'a>(
    shards: &'a Shards,
    name: &str,
    shape: MatrixShape<'_>,
    scheme: &Scheme,
) -> Result<Option<Quantized<'a>>> {
    let other = names_of(scheme, name);
    let (stored_as, own_name) = match &other {
        Some(other) if shards.tensors.contains_key(other) => (other.as_str(), true),
        _ => (name, false),
    };
    let Some(first) = part(shards, stored_as) else { return Ok(None) };
    let words = scheme.words();
    let mut parts = Parts { shards, scheme: &words, first: Some(first), found: Vec::new() };
    let matrix = Matrix { name, stored_as, shape, rows: shape.rows(), columns: shape.columns };
    let found = match scheme {
        Scheme::Gptq { bits, group_size, zero_points } if own_name => {
            matrix.gptq(&mut parts, *bits, *group_size, *zero_points)?
        }
        Scheme::Awq { group_size } if own_name => matrix.awq(&mut parts, *group_size)?,
        Scheme::Mxfp4 if own_name => matrix.mxfp4(&mut parts)?,
        Scheme::CompressedTensors(schemes) if own_name => matrix.packed(&mut parts, schemes)?,
        Scheme::CompressedTensors(schemes) if first.dtype == "I8" => matrix.bytes(&mut parts, schemes)?,
        Scheme::CompressedTensors(schemes) if float8::TYPES.contains(&first.dtype) => {
            let floats = schemes.iter().filter(|scheme| scheme.number == Number::Float8);
            let blocks: Vec<Option<[usize; 2]>> = floats
                .map(|scheme| match scheme.strategy {
                    Strategy::Block(block) => Some(block),
                    Strategy::Group(size) => Some([1, size]),
                    Strategy::Tensor | Strategy::Channel => None,
                })
                .collect();
            matrix.float8(&mut parts, &blocks)?
        }
        Scheme::Fp8 { block } if float8::TYPES.contains(&first.dtype) => {
            matrix.float8(&mut parts, &[*block])?
        }
        Scheme::BitsAndBytes if first.dtype == "I8" => matrix.int8(&mut parts)?,
        Scheme::BitsAndBytes => match matrix.four_bits(&mut parts)? {
            Some(found) => found,
            None => return Ok(None),
        },
        Scheme::BitNet { form, skipped } if !skipped.iter().any(|end| is_named(module(name), end)) => {
            matrix.ternary(&mut parts, *form)?
        }
        _ => return Ok(None),
    };
    for companion in COMPANIONS {
        parts.any(&format!("{}{companion}", if companion.starts_with('_') { name } else { module(name) }));
    }
    let (reader, row_bytes) = found;
    let quantized =
        Quantized { name: name.to_owned(), reader, columns: shape.columns, parts: parts.found, row_bytes };
    Ok(Some(quantized))
}

/// Whether a module's name begins or ends so, as transformers compares `modules_to_not_convert`.
fn is_named(module: &str, name: &str) -> bool {
    module.starts_with(name) || module.ends_with(name)
}

/// The matrix that is looked for.
struct Matrix<'m> {
    name: &'m str,
    /// The name of the part with the values.
    stored_as: &'m str,
    shape: MatrixShape<'m>,
    rows: usize,
    columns: usize,
}

impl Matrix<'_> {
    fn gptq<'a>(
        &self,
        parts: &mut Parts<'a, '_>,
        bits: usize,
        group_size: Option<usize>,
        zero_points: ZeroPoints,
    ) -> Result<Found<'a>> {
        let (rows, columns) = (self.rows, self.columns);
        let groups = columns.div_ceil(group_size.unwrap_or(columns));
        self.whole_words(parts, &[columns * bits, rows * bits])?;
        let name = |end: &str| format!("{}.{end}", module(self.name));
        let values = parts.require(self.stored_as, &["I32", "U32"], &[&[columns * bits / 32, rows]])?;
        let zeros = parts.require(&name("qzeros"), &["I32", "U32"], &[&[groups, rows * bits / 32]])?;
        let scales = parts.require(&name("scales"), FLOATS, &[&[groups, rows]])?;
        let listed = self.listed_groups(parts, &name("g_idx"), groups)?;
        let size = group_size.unwrap_or(columns);
        let less = if zero_points == ZeroPoints::MinusOne { 1 } else { 0 };
        let zeros = Zeros::Along { words: zeros.bytes, per_group: rows * bits / 32, less };
        let reader = Integers::new(
            Sizes { bits, rows, columns, groups },
            Values::Down { words: values.bytes, rows },
            listed.map_or(Groups::Of(size), |listed| Groups::new(listed, size)),
            Scales::by_group(scales, rows),
            zeros,
        );
        Ok((Box::new(reader), None))
    }

    fn awq<'a>(&self, parts: &mut Parts<'a, '_>, group_size: Option<usize>) -> Result<Found<'a>> {
        let (rows, columns) = (self.rows, self.columns);
        let size = group_size.unwrap_or(columns);
        let groups = columns.div_ceil(size);
        self.whole_words(parts, &[4 * rows])?;
        let name = |end: &str| format!("{}.{end}", module(self.name));
        let values = parts.require(self.stored_as, &["I32", "U32"], &[&[columns, rows / 8]])?;
        let zeros = parts.require(&name("qzeros"), &["I32", "U32"], &[&[groups, rows / 8]])?;
        let scales = parts.require(&name("scales"), FLOATS, &[&[groups, rows]])?;
        let reader = Integers::new(
            Sizes { bits: 4, rows, columns, groups },
            Values::Awq { words: values.bytes, rows },
            Groups::Of(size),
            Scales::by_group(scales, rows),
            Zeros::Awq { words: zeros.bytes, rows },
        );
        Ok((Box::new(reader), None))
    }

    /// Experts: [experts, out, in / 32, 16] and [experts, out, in / 32].
    fn mxfp4<'a>(&self, parts: &mut Parts<'a, '_>) -> Result<Found<'a>> {
        if !self.columns.is_multiple_of(BLOCK) {
            let what = format!("its rows of {} values are not whole blocks of {BLOCK}", self.columns);
            return Err(self.fault(parts, &what));
        }
        let blocks = self.columns / BLOCK;
        let outer = &self.shape.stored[..self.shape.stored.len().saturating_sub(2)];
        let out = self.rows / outer.iter().product::<usize>().max(1);
        let exponents_shape = [outer, &[out, blocks]].concat();
        let values_shape = [&exponents_shape[..], &[BLOCK / 2]].concat();
        let values = parts.require(self.stored_as, &["U8"], &[&values_shape])?;
        let exponents =
            parts.require(&format!("{}_scales", self.name), &["U8", "F8_E8M0"], &[&exponents_shape])?;
        let reader = Mxfp4 { values: values.bytes, exponents: exponents.bytes, blocks };
        Ok((Box::new(reader), Some(blocks * BLOCK / 2)))
    }

    /// compressed-tensors, pack-quantized.
    fn packed<'a>(&self, parts: &mut Parts<'a, '_>, schemes: &[WeightScheme]) -> Result<Found<'a>> {
        self.is_rows_first(parts)?;
        let (rows, columns) = (self.rows, self.columns);
        let packed = part(parts.shards, self.stored_as);
        let words = |bits: usize| (columns * bits).div_ceil(32);
        let integers = |scheme: &&WeightScheme| matches!(scheme.number, Number::Int(_));
        let fits = |scheme: &&WeightScheme| match (scheme.number, packed) {
            (Number::Int(bits), Some(packed)) => *packed.shape == [rows, words(bits)],
            _ => false,
        };
        let scheme = self.scheme_of(parts, schemes, fits).or_else(|| schemes.iter().find(integers));
        let Some((scheme, Number::Int(bits))) = scheme.map(|scheme| (scheme, scheme.number)) else {
            return Err(
                self.fault(parts, "its integers are packed, and no entry of config_groups has type int")
            );
        };
        let values = parts.require(self.stored_as, &["I32", "U32"], &[&[rows, words(bits)]])?;
        let (scales, groups, size) = self.shared_scales(parts, scheme.strategy)?;
        let listed = self.listed_groups(parts, &format!("{}_g_idx", self.name), groups)?;
        let name = format!("{}_zero_point", self.name);
        let zeros = if scheme.symmetric {
            parts.any(&name);
            Zeros::Same(1 << (bits - 1))
        } else if scheme.strategy == Strategy::Tensor {
            let zeros = parts.require(&name, &["I8"], &[&[1], &[]])?;
            // The integers are shifted by half their range, and signed bytes by 128.
            Zeros::Same(i32::from(zeros.bytes[0] as i8) + (1 << (bits - 1)))
        } else {
            let zeros = parts.require(&name, &["I32", "U32"], &[&[(rows * bits).div_ceil(32), groups]])?;
            Zeros::Down { words: zeros.bytes, groups }
        };
        let reader = Integers::new(
            Sizes { bits, rows, columns, groups },
            Values::Along { words: values.bytes, per_row: words(bits) },
            listed.map_or(Groups::Of(size), |listed| Groups::new(listed, size)),
            scales,
            zeros,
        );
        Ok((Box::new(reader), Some(4 * words(bits))))
    }

    /// compressed-tensors, int-quantized: signed bytes.
    fn bytes<'a>(&self, parts: &mut Parts<'a, '_>, schemes: &[WeightScheme]) -> Result<Found<'a>> {
        self.is_rows_first(parts)?;
        let (rows, columns) = (self.rows, self.columns);
        let Some(scheme) = self.scheme_of(parts, schemes, |scheme| scheme.number == Number::Int(8)) else {
            return Err(
                self.fault(parts, "it is stored as I8, and no entry of config_groups has 8 bits of type int")
            );
        };
        let values = parts.require(self.stored_as, &["I8"], &[&[rows, columns]])?;
        let (scales, groups, size) = self.shared_scales(parts, scheme.strategy)?;
        let listed = self.listed_groups(parts, &format!("{}_g_idx", self.name), groups)?;
        let name = format!("{}_zero_point", self.name);
        let zeros = if scheme.symmetric {
            parts.any(&name);
            Zeros::Same(128)
        } else {
            let shapes: &[&[usize]] = match scheme.strategy {
                Strategy::Tensor => &[&[1], &[]],
                _ if groups == 1 => &[&[rows, 1], &[rows]],
                _ => &[&[rows, groups]],
            };
            let zeros = parts.require(&name, &["I8"], shapes)?;
            let row_stride = if scheme.strategy == Strategy::Tensor { 0 } else { groups };
            Zeros::Bytes { bytes: zeros.bytes, row_stride, group_stride: if groups == 1 { 0 } else { 1 } }
        };
        let reader = Integers::new(
            Sizes { bits: 8, rows, columns, groups },
            Values::Bytes(values.bytes),
            listed.map_or(Groups::Of(size), |listed| Groups::new(listed, size)),
            scales,
            zeros,
        );
        Ok((Box::new(reader), Some(columns)))
    }

    /// `weight_scale` of integers, the number of groups in a row, and their size.
    fn shared_scales<'a>(
        &self,
        parts: &mut Parts<'a, '_>,
        strategy: Strategy,
    ) -> Result<(Scales<'a>, usize, usize)> {
        let (rows, columns) = (self.rows, self.columns);
        let shapes = self.scale_shapes(strategy);
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let scales = parts.require(&format!("{}_scale", self.name), FLOATS, &shapes)?;
        Ok(match strategy {
            Strategy::Tensor => (Scales::of_tensor(scales), 1, columns),
            Strategy::Channel => (Scales::by_row(scales, 1), 1, columns),
            Strategy::Group(size) => {
                let groups = columns.div_ceil(size);
                (Scales::by_row(scales, groups), groups, size)
            }
            Strategy::Block([row_block, size]) => {
                let groups = columns.div_ceil(size);
                (Scales::by_block(scales, row_block, rows, groups), groups, size)
            }
        })
    }

    /// The shapes that `weight_scale` of integers may have.
    fn scale_shapes(&self, strategy: Strategy) -> Vec<Vec<usize>> {
        let (rows, columns) = (self.rows, self.columns);
        match strategy {
            Strategy::Tensor => vec![vec![1], vec![], vec![1, 1]],
            Strategy::Channel => vec![vec![rows, 1], vec![rows]],
            Strategy::Group(size) => vec![vec![rows, columns.div_ceil(size)]],
            Strategy::Block([row_block, size]) => {
                vec![vec![rows.div_ceil(row_block), columns.div_ceil(size)]]
            }
        }
    }

    /// Of the schemes of several groups of modules, the one that this matrix has all parts of: the shape of its scales,
    /// and zero points or none. None fits a damaged file: then the first one that `fits` its integers.
    fn scheme_of<'s>(
        &self,
        parts: &Parts<'_, '_>,
        schemes: &'s [WeightScheme],
        fits: impl Fn(&&'s WeightScheme) -> bool,
    ) -> Option<&'s WeightScheme> {
        let scale = part(parts.shards, &format!("{}_scale", self.name));
        let has_zero_points = parts.has(&format!("{}_zero_point", self.name));
        let whole = |scheme: &&WeightScheme| {
            let shapes = self.scale_shapes(scheme.strategy);
            scheme.symmetric != has_zero_points
                && scale.is_some_and(|scale| shapes.iter().any(|shape| shape == scale.shape))
        };
        let fitting = || schemes.iter().filter(|scheme| fits(scheme));
        fitting().find(whole).or_else(|| fitting().next())
    }

    /// Floats of a byte; the scale's shape says what shares one: one of `blocks`, or for None the tensor or a row.
    fn float8<'a>(&self, parts: &mut Parts<'a, '_>, blocks: &[Option<[usize; 2]>]) -> Result<Found<'a>> {
        self.is_rows_first(parts)?;
        let (rows, columns) = (self.rows, self.columns);
        let outer = &self.shape.stored[..self.shape.stored.len().saturating_sub(2)];
        let matrix_rows = rows / outer.iter().product::<usize>().max(1);
        let values = parts.require(self.stored_as, float8::TYPES, &[self.shape.stored])?;
        let [inverse, plain] = ["scale_inv", "scale"].map(|end| format!("{}_{end}", self.name));
        // Both names mean the factor of the stored value.
        let name = if !parts.has(&inverse) && parts.has(&plain) { plain } else { inverse };
        let of_block = |[row_block, column_block]: &[usize; 2]| {
            [outer, &[matrix_rows.div_ceil(*row_block), columns.div_ceil(*column_block)]].concat()
        };
        let with_rows: Vec<[usize; 2]> = blocks.iter().flatten().copied().collect();
        let block_shapes: Vec<Vec<usize>> = with_rows.iter().map(of_block).collect();
        let by_row: [&[usize]; 2] = [&[rows, 1], &[rows]];
        let of_tensor: [&[usize]; 3] = [&[], &[1], &[1, 1]];
        let mut shapes: Vec<&[usize]> = block_shapes.iter().map(Vec::as_slice).collect();
        if blocks.contains(&None) || blocks.is_empty() {
            shapes.extend(of_tensor.iter().chain(&by_row));
        }
        let scales = parts.require(&name, FLOATS, &shapes)?;
        let in_blocks = block_shapes.iter().zip(&with_rows).find(|(shape, _)| **shape == *scales.shape);
        let (group, scales) = match in_blocks {
            Some((_, &[row_block, column_block])) => {
                let groups = columns.div_ceil(column_block);
                (column_block, Scales::by_block(scales, row_block, matrix_rows, groups))
            }
            None if scales.shape.iter().product::<usize>() == 1 => (columns, Scales::of_tensor(scales)),
            None => (columns, Scales::by_row(scales, 1)),
        };
        Ok((Box::new(Float8::new(values.dtype, values.bytes, group, scales)), Some(columns)))
    }

    /// bitnet, packed with one scale, or floats that the model rounds.
    fn ternary<'a>(&self, parts: &mut Parts<'a, '_>, form: TernaryForm) -> Result<Found<'a>> {
        const NUMBERS: &[&str] = &["F32", "F16", "BF16"];
        self.is_rows_first(parts)?;
        let (rows, columns) = (self.rows, self.columns);
        if form == TernaryForm::Floats {
            let values = parts.require(self.stored_as, NUMBERS, &[&[rows, columns]])?;
            let kind = StorageType::named(values.dtype).unwrap_or(StorageType::F32);
            let reader = ternary::Rounded::new(values, kind);
            return Ok((Box::new(reader), Some(kind.row_bytes(columns))));
        }
        if !rows.is_multiple_of(ROWS_IN_BYTE) {
            return Err(self.fault(parts, &format!("its {rows} rows are not whole bytes of {ROWS_IN_BYTE}")));
        }
        let values = parts.require(self.stored_as, &["U8"], &[&[rows / ROWS_IN_BYTE, columns]])?;
        let scale = parts.require(&format!("{}_scale", self.name), NUMBERS, &[&[1], &[]])?;
        let reader = ternary::Packed {
            bytes: values.bytes,
            rows,
            scale: Scales::of_tensor(scale),
            is_divisor: form == TernaryForm::Divided,
        };
        Ok((Box::new(reader), None))
    }

    /// bitsandbytes, LLM.int8: signed bytes of `SCB` / 127 of a row.
    fn int8<'a>(&self, parts: &mut Parts<'a, '_>) -> Result<Found<'a>> {
        self.is_rows_first(parts)?;
        let (rows, columns) = (self.rows, self.columns);
        let values = parts.require(self.stored_as, &["I8"], &[&[rows, columns]])?;
        let scales = parts.require(&format!("{}.SCB", module(self.name)), FLOATS, &[&[rows]])?;
        let format = parts.any(&format!("{}.weight_format", module(self.name)));
        if let Some(format) = format
            && format.bytes.iter().any(|byte| *byte != 0)
        {
            return Err(format.fault("it must be 0: rows one after the other"));
        }
        let reader = Integers::new(
            Sizes { bits: 8, rows, columns, groups: 1 },
            Values::Bytes(values.bytes),
            Groups::Of(columns),
            Scales::by_row(scales, 1).times(1.0 / 127.0),
            Zeros::Same(128),
        );
        Ok((Box::new(reader), Some(columns)))
    }

    /// bitsandbytes, NF4 and FP4; None for a matrix without a state of quantization.
    fn four_bits<'a>(&self, parts: &mut Parts<'a, '_>) -> Result<Option<Found<'a>>> {
        let states = ["nf4", "fp4"].map(|kind| format!("{}.quant_state.bitsandbytes__{kind}", self.name));
        let stored = part(parts.shards, self.stored_as);
        let Some(state) = states.iter().find(|name| parts.has(name)) else {
            // Integers without a state are damaged; floats were not quantized.
            return match stored {
                Some(part) if part.dtype == "U8" => parts.require(&states[0], &["U8"], &[]).map(|_| None),
                _ => Ok(None),
            };
        };
        self.is_rows_first(parts)?;
        let state_name = state.clone();
        let (rows, columns) = (self.rows, self.columns);
        let count = rows.saturating_mul(columns);
        let values = parts.any(self.stored_as);
        let state = parts.any(&state_name);
        let (Some(values), Some(state)) = (values, state) else { return Ok(None) };
        let QuantState { shape, block, nested } = QuantState::read(&state)?;
        if shape != self.shape.stored {
            let what = format!("shape: {shape:?}; {:?} is expected (from config.json)", self.shape.stored);
            return Err(state.fault(&what));
        }
        // Any type: bnb_4bit_quant_storage is only how the bytes are called.
        if values.bytes.len() != count.div_ceil(2) {
            let bytes = values.bytes.len();
            return Err(values.fault(&format!("it has {bytes} bytes; {} are expected", count.div_ceil(2))));
        }
        let table = |parts: &mut Parts<'a, '_>, end: &str, length: usize| -> Result<Vec<f32>> {
            let table = parts.require(&format!("{}.{end}", self.name), &["F32"], &[&[length]])?;
            Ok(table.bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
        };
        let blocks = count.div_ceil(block);
        let codes = table(parts, "quant_map", 16)?;
        let name = format!("{}.absmax", self.name);
        let absmax = match nested {
            None => Absmax::Floats(Scales::by_row(parts.require(&name, FLOATS, &[&[blocks]])?, 1)),
            Some((nested_block, offset)) => {
                let bytes = parts.require(&name, &["U8"], &[&[blocks]])?.bytes;
                let name = format!("{}.nested_absmax", self.name);
                let scales = parts.require(&name, FLOATS, &[&[blocks.div_ceil(nested_block)]])?;
                let table = table(parts, "nested_quant_map", 256)?;
                Absmax::Bytes { bytes, table, scales: Scales::by_row(scales, 1), block: nested_block, offset }
            }
        };
        let reader = FourBits { bytes: values.bytes, table: codes, absmax, block };
        // Rows of whole bytes are contiguous.
        Ok(Some((Box::new(reader), columns.is_multiple_of(2).then_some(columns / 2))))
    }

    /// `g_idx`, if there is one: each entry is a group.
    fn listed_groups(
        &self,
        parts: &mut Parts<'_, '_>,
        name: &str,
        groups: usize,
    ) -> Result<Option<Vec<usize>>> {
        if !parts.has(name) {
            return Ok(None);
        }
        let part = parts.require(name, &["I32", "I64"], &[&[self.columns]])?;
        let size = part.bytes.len() / self.columns.max(1);
        let entry = |bytes: &[u8]| match bytes {
            [a, b, c, d] => i64::from(i32::from_le_bytes([*a, *b, *c, *d])),
            _ => bytes.try_into().map_or(-1, i64::from_le_bytes),
        };
        let entries: Vec<i64> = part.bytes.chunks_exact(size.max(1)).map(entry).collect();
        // compressed-tensors writes -1 for "not used", some programs that write GPTQ 0.
        if [-1, 0].iter().any(|unused| entries.iter().all(|group| group == unused)) {
            return Ok(None);
        }
        let group = |&entry: &i64| usize::try_from(entry).ok().filter(|group| *group < groups);
        let listed: Option<Vec<usize>> = entries.iter().map(group).collect();
        listed.map(Some).ok_or_else(|| {
            let outside = entries.iter().find(|entry| group(entry).is_none()).copied().unwrap_or(-1);
            part.fault(&format!("its entries must be groups from 0 to {} (got {outside})", groups - 1))
        })
    }

    /// Sizes that are packed into words of 32 bits must fill them.
    fn whole_words(&self, parts: &Parts<'_, '_>, bits: &[usize]) -> Result<()> {
        match bits.iter().all(|bits| bits.is_multiple_of(32)) {
            true => Ok(()),
            false => {
                let sizes = format!("{} x {}", self.rows, self.columns);
                Err(self.fault(parts, &format!("a matrix of {sizes} does not fill words of 32 bits")))
            }
        }
    }

    /// Layouts that follow the shape of the plain tensor are read for [out, in] only.
    fn is_rows_first(&self, parts: &Parts<'_, '_>) -> Result<()> {
        if !self.shape.in_out {
            return Ok(());
        }
        Err(Error::Unsupported {
            path: parts.shards.listing.as_path().to_owned(),
            key: escape_for_terminal(self.stored_as),
            what: format!(
                "a matrix that is stored [in, out] is not read in this scheme ({}); use another copy of the model",
                parts.scheme
            ),
        })
    }

    fn fault(&self, parts: &Parts<'_, '_>, what: &str) -> Error {
        let path = parts.first.map_or(parts.shards.listing.as_path(), |part: Part<'_>| part.path);
        Error::Tensor {
            path: path.to_owned(),
            name: escape_for_terminal(self.stored_as),
            what: format!("{what} ({}); use another copy of the model", parts.scheme),
        }
    }
}
