//! The families: each is one short file here and one line in [`FAMILIES`].

mod afmoe;
mod apertus;
mod arcee;
mod aria;
mod bamba;
mod bitnet;
mod cohere;
mod cwm;
mod dbrx;
mod deepseek;
mod deepseek_v32;
mod deepseek_v4;
mod diffllama;
mod doge;
mod dots1;
mod dots3_note;
mod dtransformer;
mod ernie4_5;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4_moe;
mod gpt2;
mod gpt_neo;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_moe;
mod granitemoehybrid;
mod helium;
mod hrm_text;
mod hunyuan;
mod hy_v4;
mod inkling;
mod jamba;
mod jetmoe;
mod kimi_linear;
mod laguna;
mod lfm2;
mod llama;
mod llama4;
mod longcat_flash;
mod minimax;
mod minimax_m2;
mod minimax_m3;
mod mistral;
mod mistral4;
mod mixtral;
mod modernbert_decoder;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo_hybrid;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen4_exp;
mod recurrent_gemma;
mod seed_oss;
mod smollm3;
mod solar_open;
mod stablelm;
mod starcoder2;
mod youtu;
mod zamba2;
mod zaya;

use super::keys::base::Family;

/// All families, but models with parts for pictures or sound (`composite.rs`).
pub static FAMILIES: &[&Family] = &[
    &llama::LLAMA,
    &llama::INTERNLM3,
    &llama::IQUESTCODER,
    &mistral::MISTRAL,
    &mistral::MINISTRAL3,
    &mixtral::MIXTRAL,
    &qwen2::QWEN2,
    &qwen2_moe::QWEN2_MOE,
    &qwen3::QWEN3,
    &qwen3::QWEN3_MOE,
    &gemma::GEMMA,
    &gemma::GEMMA2,
    &gemma3::GEMMA3_TEXT,
    &phi::PHI,
    &phi3::PHI3,
    &gpt_neox::GPT_NEOX,
    &gptj::GPTJ,
    &stablelm::STABLELM,
    &olmo::OLMO,
    &olmo::OLMO2,
    &smollm3::SMOLLM3,
    &granite::GRANITE,
    &cohere::COHERE,
    &cohere::COHERE2,
    &starcoder2::STARCODER2,
    &exaone4::EXAONE4,
    &falcon::FALCON,
    &glm::GLM,
    &glm::GLM4,
    &nemotron::NEMOTRON,
    &gpt_oss::GPT_OSS,
    &deepseek::DEEPSEEK_V2,
    &deepseek::DEEPSEEK_V3,
    &deepseek_v32::DEEPSEEK_V32,
    &deepseek_v32::GLM_MOE_DSA,
    &deepseek_v32::AXK2,
    &deepseek_v4::DEEPSEEK_V4,
    &dots3_note::DOTS3_NOTE_TEXT,
    &minimax_m3::MINIMAX_M3_VL_TEXT,
    &mistral::MINISTRAL,
    &mistral4::MISTRAL4,
    &seed_oss::SEED_OSS,
    &arcee::ARCEE,
    &arcee::JAIS2,
    &cwm::CWM,
    &helium::HELIUM,
    &ernie4_5::ERNIE4_5,
    &ernie4_5::ERNIE4_5_MOE,
    &hrm_text::HRM_TEXT,
    &hunyuan::HUNYUAN_V1_DENSE,
    &hunyuan::HUNYUAN_V1_MOE,
    &hunyuan::HY_V3,
    &hy_v4::HY_V4,
    &olmo::OLMO3,
    &olmo::OLMOE,
    &olmo::FLEX_OLMO,
    &glm4_moe::GLM4_MOE,
    &glm4_moe::GLM4_MOE_LITE,
    &dots1::DOTS1,
    &solar_open::SOLAR_OPEN,
    &minimax_m2::MINIMAX_M2,
    &youtu::YOUTU,
    &youtu::MINICPM3,
    &youtu::AXK1,
    &apertus::APERTUS,
    &gemma::VAULTGEMMA,
    &gemma3n::GEMMA3N_TEXT,
    &gemma4::GEMMA4_TEXT,
    &gemma4::GEMMA4_UNIFIED_TEXT,
    &granite_moe::GRANITEMOE,
    &granite_moe::GRANITE_SWA,
    &granite_moe::GRANITEMOE_SWA,
    &granite_moe::HYPERCLOVAX,
    &exaone_moe::EXAONE_MOE,
    &exaone_moe::KOLIBRI1,
    &aria::ARIA_TEXT,
    &afmoe::AFMOE,
    &afmoe::BEAM,
    &afmoe::FLINT,
    &bitnet::BITNET,
    &dbrx::DBRX,
    &laguna::LAGUNA,
    &laguna::MELLUM,
    &laguna::MIMO_V2_FLASH,
    &nanochat::NANOCHAT,
    &persimmon::PERSIMMON,
    &phimoe::PHIMOE,
    &llama4::LLAMA4_TEXT,
    &gptj::CODEGEN,
    &gpt_neox::GPT_NEOX_JAPANESE,
    &cohere::COHERE2_MOE,
    &cohere::COHERE_COMPASS_TEXT,
    &modernbert_decoder::MODERNBERT_DECODER,
    &diffllama::DIFFLLAMA,
    &longcat_flash::LONGCAT_FLASH,
    &gpt2::GPT2,
    &gpt_neo::GPT_NEO,
    &lfm2::LFM2,
    &lfm2::LFM2_MOE,
    &lfm2::LFM3,
    &falcon_h1::FALCON_H1,
    &olmo_hybrid::OLMO_HYBRID,
    &bamba::BAMBA,
    &granitemoehybrid::GRANITEMOEHYBRID,
    &nemotron_h::NEMOTRON_H,
    &qwen3_5::QWEN3_NEXT,
    &qwen3_5::QWEN3_5,
    &qwen3_5::QWEN3_5_MOE,
    &qwen3_5::QWEN3_5_COMPOSITE,
    &qwen4_exp::QWEN4_EXP_TEXT,
    &qwen4_exp::QWEN4_EXP,
    &jamba::JAMBA,
    &minimax::MINIMAX,
    &kimi_linear::KIMI_LINEAR,
    &kimi_linear::BAILING_HYBRID,
    &recurrent_gemma::RECURRENT_GEMMA,
    &zamba2::ZAMBA2,
    &zaya::ZAYA,
    &doge::DOGE,
    &jetmoe::JETMOE,
    &inkling::INKLING_TEXT,
    &dtransformer::DTRANSFORMER_ROPE,
];
