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

}  // namespace

int64_t peak_rss_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string report_json(const GenerateResult& result) {
  const Json json = {
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
  // A model may emit bytes that are no UTF-8; JSON gets U+FFFD in their place.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string report_table(const GenerateResult& result) {
  const std::string threads =
      result.device == "cpu" ? fmt::format(", {} threads", result.num_threads) : "";
  std::string table = fmt::format("\n{}, {}, {}{}\n", result.model_name, result.decode_method,
                                  result.kernel, threads);
  if (result.cached_tokens > 0) table += table_row("cached", result.cached_tokens, 0.0);
  table += table_row("prefill", result.prompt_tokens - result.cached_tokens, result.prefill_s);
  table += table_row("decode", result.decode_steps, result.decode_s);
  table += fmt::format("kept_fraction {:.3f}, KV cache {}, read per token {}, peak memory {}\n",
                       result.stats.kept_fraction, mebibytes(double(result.stats.kv_bytes)),
                       mebibytes(result.stats.kv_bytes_read_per_token),
                       mebibytes(double(result.peak_rss_bytes)));
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
