#include "generate_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "build_info.h"

namespace longdecode::tool {
namespace {

using Json = nlohmann::ordered_json;

Json per_second(int64_t count, double seconds) {
  if (count == 0 || seconds <= 0.0) return nullptr;
  return static_cast<double>(count) / seconds;
}

std::string mebibytes(double bytes) { return fmt::format("{:.1f} MiB", bytes / (1 << 20)); }

std::string table_row(const char* name, int64_t count, double seconds) {
  const std::string rate =
      count > 0 && seconds > 0.0 ? fmt::format("{:9.1f} tok/s", double(count) / seconds) : "";
  return fmt::format("{:<10}{:>7} tokens{:>9.2f} s {}\n", name, count, seconds, rate);
}

struct Part {
  const char* name;
  double seconds;
};

std::vector<Part> prefill_parts(const GenerateResult& result) {
  const runner::StepTimes& times = result.stats.prefill_times;
  return {{"linear", times.linear_s},
          {"attention", times.attention_s},
          {"append", times.append_s},
          {"rest", result.prefill_s - times.linear_s - times.attention_s - times.append_s}};
}

std::vector<Part> decode_parts(const GenerateResult& result) {
  const runner::StepTimes& times = result.stats.decode_times;
  return {{"linear", times.linear_s},
          {"attention", times.attention_s},
          {"append", times.append_s},
          {"sampling", result.sampling_s},
          {"rest", result.decode_s - times.linear_s - times.attention_s - times.append_s -
                       result.sampling_s}};
}

Json timing_json(const GenerateResult& result) {
  const auto object = [](const std::vector<Part>& parts) {
    Json json = Json::object();
    for (const Part& part : parts) json[fmt::format("{}_s", part.name)] = part.seconds;
    return json;
  };
  return {{"load_s", result.load_s},
          {"tokenize_s", result.tokenize_s},
          {"prompt_cache_s", result.cache_s},
          {"prefill", object(prefill_parts(result))},
          {"decode", object(decode_parts(result))}};
}

// The options of the selection; delta is null where it is infinite.
Json ffd_json(const SessionFlags& flags) {
  const Json delta = std::isfinite(flags.ffd.delta) ? Json(flags.ffd.delta) : Json(nullptr);
  return {
      {"delta", delta},
      {"margin_sigmas", flags.ffd.margin_sigmas},
      {"certified", flags.ffd.certified},
      {"sink_tokens", flags.ffd.sink_tokens},
      {"recent_tokens", flags.ffd.recent_tokens},
      {"dense_layers", flags.dense_layers},
      {"layer_delta", flags.layer_delta_texts},
  };
}

// What was asked for, and on what it ran.
Json settings_json(const GenerateResult& result) {
  return {
      {"kv_bytes_read_per_token", result.stats.kv_bytes_read_per_token},
      {"peak_rss_bytes", result.peak_rss_bytes},
      {"method", result.method},
      {"decode_method", result.decode_method},
      {"ffd_min_len", result.ffd_min_len},
      {"device", result.device},
      {"kernel", result.kernel},
      {"kv_type", result.kv_type},
      {"ffd", ffd_json(result.session)},
      {"temp", result.sampler.temperature},
      {"top_k", result.sampler.top_k},
      {"top_p", result.sampler.top_p},
      {"context_len", result.context_len},
      {"num_threads", result.num_threads},
      {"seed", result.seed},
      {"model", result.model_path},
      {"model_name", result.model_name},
      {"version", build_info().version},
      {"commit", build_info().commit},
  };
}

// A model may emit bytes that are no UTF-8; JSON gets U+FFFD in their place.
std::string dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string title_row(const GenerateResult& result) {
  const std::string threads =
      result.device == "cpu" ? fmt::format(", {} threads", result.num_threads) : "";
  return fmt::format("{}, {}, {}{}\n", result.model_name, result.decode_method, result.kernel,
                     threads);
}

}  // namespace

int64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string report_json(const GenerateResult& result) {
  Json json = {
      {"text", result.text},
      {"token_ids", result.token_ids},
      {"prompt_tokens", result.prompt_tokens},
      {"cached_tokens", result.cached_tokens},
      {"num_generated", result.token_ids.size()},
      {"stop_reason", result.stop_reason},
      {"prefill_tok_s", per_second(result.prompt_tokens - result.cached_tokens, result.prefill_s)},
      {"decode_tok_s", per_second(result.decode_steps, result.decode_s)},
      {"load_s", result.load_s},
      {"prefill_s", result.prefill_s},
      {"decode_s", result.decode_s},
      {"timing", timing_json(result)},
      {"kept_fraction", result.stats.kept_fraction},
      {"kv_bytes", result.stats.kv_bytes},
  };
  json.update(settings_json(result));
  return dump(json);
}

std::string report_json(const BatchResult& result) {
  const GenerateResult& run = result.run;
  Json prompts = Json::array();
  int64_t num_generated = 0;
  for (size_t i = 0; i < result.prompts.size(); ++i) {
    const PromptResult& prompt = result.prompts[i];
    num_generated += static_cast<int64_t>(prompt.token_ids.size());
    prompts.push_back({
        {"prompt_idx", i},
        {"file", prompt.file.empty() ? Json(nullptr) : Json(prompt.file)},
        {"text", prompt.text},
        {"token_ids", prompt.token_ids},
        {"prompt_tokens", prompt.prompt_tokens},
        {"num_generated", prompt.token_ids.size()},
        {"stop_reason", prompt.stop_reason},
        {"seed", prompt.seed},
    });
  }
  Json json = {
      {"prompts", prompts},
      {"parallel", result.parallel},
      {"prompt_tokens", run.prompt_tokens},
      {"num_generated", num_generated},
      {"prefill_tok_s", per_second(run.prompt_tokens, run.prefill_s)},
      {"decode_tok_s", per_second(run.decode_steps, run.decode_s)},
      {"total_tok_s", per_second(num_generated, result.total_s)},
      {"load_s", run.load_s},
      {"prefill_s", run.prefill_s},
      {"decode_s", run.decode_s},
      {"total_s", result.total_s},
      {"timing", timing_json(run)},
      {"kept_fraction", run.stats.kept_fraction},
  };
  json.update(settings_json(run));
  return dump(json);
}

void finish(BatchResult& result) {
  GenerateResult& run = result.run;
  for (const PromptResult& prompt : result.prompts) {
    run.prompt_tokens += prompt.prompt_tokens;
    // All tokens were fed, or all but the last one.
    run.decode_steps += static_cast<int64_t>(prompt.token_ids.size());
    if (prompt.stop_reason != "eos") --run.decode_steps;
  }
  run.prefill_s = run.stats.prefill_times.total_s;
  run.decode_s = run.stats.decode_times.total_s;
  run.sampling_s = run.stats.decode_times.sampling_s;
}

std::string report_table(const GenerateResult& result) {
  std::string table = "\n" + title_row(result);
  if (result.cached_tokens > 0) table += table_row("cached", result.cached_tokens, 0.0);
  table += table_row("prefill", result.prompt_tokens - result.cached_tokens, result.prefill_s);
  table += table_row("decode", result.decode_steps, result.decode_s);
  table += fmt::format("kept_fraction {:.3f}, KV cache {}, read per token {}, peak memory {}\n",
                       result.stats.kept_fraction, mebibytes(double(result.stats.kv_bytes)),
                       mebibytes(result.stats.kv_bytes_read_per_token),
                       mebibytes(double(result.peak_rss_bytes)));
  return table;
}

std::string report_table(const BatchResult& result) {
  const GenerateResult& run = result.run;
  std::string table = "\n" + title_row(run);
  table += fmt::format("{} prompts, {}\n", result.prompts.size(),
                       result.parallel > 1 ? fmt::format("{} decoded together", result.parallel)
                                           : "one after the other");
  table += table_row("prefill", run.prompt_tokens, run.prefill_s);
  table += table_row("decode", run.decode_steps, run.decode_s);
  table += fmt::format("kept_fraction {:.3f}, read per token {}, peak memory {}\n",
                       run.stats.kept_fraction, mebibytes(run.stats.kv_bytes_read_per_token),
                       mebibytes(double(run.peak_rss_bytes)));
  return table;
}

std::string timing_table(const GenerateResult& result) {
  std::string table = fmt::format("{:<22}{:>10}\n", "time", "ms");
  const auto row = [&](std::string name, double seconds, std::string more) {
    table += fmt::format("{:<22}{:>10.1f}{}\n", name, 1e3 * seconds, more);
  };
  row("load", result.load_s, "");
  row("tokenize", result.tokenize_s, "");
  if (result.cache_s > 0.0) row("prompt cache", result.cache_s, "");
  row("prefill", result.prefill_s, "");
  for (const Part& part : prefill_parts(result)) {
    row(fmt::format("  {}", part.name), part.seconds, "");
  }
  const auto steps = static_cast<double>(std::max<int64_t>(result.decode_steps, 1));
  row("decode", result.decode_s, fmt::format("{:>10.3f} per step", 1e3 * result.decode_s / steps));
  for (const Part& part : decode_parts(result)) {
    row(fmt::format("  {}", part.name), part.seconds,
        fmt::format("{:>10.3f}", 1e3 * part.seconds / steps));
  }
  return table;
}

}  // namespace longdecode::tool
