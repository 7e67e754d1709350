// `longdecode bench model`: tokens per second of prefill and decode at several depths of context.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/dtype_name.h"
#include "base/errors.h"
#include "base/status_macros.h"
#include "bench_model.h"
#include "build_info.h"
#include "commands.h"
#include "list_option.h"
#include "model_file.h"
#include "open_session.h"
#include "option_checks.h"
#include "output.h"
#include "output_flags.h"
#include "progress.h"
#include "runner/model/session.h"
#include "runner/prompt_cache/snapshot.h"
#include "session_options.h"
#include "synthetic_text.h"
#include "text_tokens.h"

namespace longdecode::tool {
namespace {

constexpr const char* kFooter = R"(
Rows as llama-bench has them: ppP @ dD is the prefill of P tokens after D tokens of context, tgN @
dD are N decode steps there, without sampling. The context is filled once per method and depth and
put back before each repetition. tok_s is the mean of the repetitions, tok_s_stdev their standard
deviation. kept_fraction and kv_bytes_read_per_token are those of the decode steps, which are fed
with the text that follows the context; kept_fraction depends on the text. Without -f that is a
fixed pseudo-random sequence of English words, which is no substitute for a real document.

With --random-weights attention reads planted queries and keys, so that layer 0 keeps 20% of the
tokens and the others 10%, 1% and 0.5% at 16K, 128K and 256K. bound_tok_s is what 4.6 TB/s give for
the bytes of a step; weights, attend and other are the kinds of work of a step, replayed alone, gaps
what the step takes beyond them.

Examples:
  longdecode bench model -m model.gguf -d 0,4096 --method dense,ffd
  longdecode bench model --random-weights llama-3.1-8b -n 256 -d 16384,131072 --graph off,any-length
  longdecode bench model -m model.gguf -p 512 -n 64 -d 7000 -f book.txt -t 2 --json -)";

struct BenchModelRow {
  std::string method;
  std::string device;
  std::string kernel;
  std::string kv_type;
  int64_t depth = 0;
  std::string test;
  std::vector<double> tok_s;            // [reps]
  std::optional<double> kept_fraction;  // of decode rows
  std::optional<double> kv_bytes_read_per_token;
  int32_t num_threads = 0;

  double mean() const {
    double sum = 0.0;
    for (const double value : tok_s) sum += value;
    return sum / static_cast<double>(tok_s.size());
  }
  double stdev() const {  // of a sample; 0 for one repetition
    double sum = 0.0;
    for (const double value : tok_s) sum += (value - mean()) * (value - mean());
    return tok_s.size() < 2 ? 0.0 : std::sqrt(sum / static_cast<double>(tok_s.size() - 1));
  }
};

// Means over the decode steps between two readings of a session's running means.
void set_decode_stats(const runner::SessionStats& before, const runner::SessionStats& after,
                      BenchModelRow* row) {
  const auto mean = [&](double first, double last) {
    const auto steps = static_cast<double>(after.decode_steps - before.decode_steps);
    return (last * static_cast<double>(after.decode_steps) -
            first * static_cast<double>(before.decode_steps)) /
           steps;
  };
  row->kept_fraction = mean(before.kept_fraction, after.kept_fraction);
  row->kv_bytes_read_per_token =
      mean(before.kv_bytes_read_per_token, after.kv_bytes_read_per_token);
}

// One method's session, its context filled to deeper and deeper depths.
class MethodBench {
 public:
  MethodBench(const BenchModelOptions& options, std::span<const int32_t> tokens,
              const std::string& method, runner::Session session)
      : options_(options), tokens_(tokens), method_(method), session_(std::move(session)) {}

  Status run(std::vector<BenchModelRow>* rows) {
    LD_RETURN_IF_ERROR(warm_up());
    for (const int64_t depth : std::set(options_.depths.begin(), options_.depths.end())) {
      LD_RETURN_IF_ERROR(fill(depth));
      if (options_.prompt_tokens > 0) {
        BenchModelRow row = make_row("pp", options_.prompt_tokens);
        LD_RETURN_IF_ERROR(measure(options_.prompt_tokens, &row,
                                   [&](auto text) { return session_.prefill(text, nullptr); }));
        rows->push_back(std::move(row));
      }
      if (options_.decode_tokens > 0) {
        BenchModelRow row = make_row("tg", options_.decode_tokens);
        const runner::SessionStats before = session_.stats();
        LD_RETURN_IF_ERROR(
            measure(options_.decode_tokens, &row, [&](auto text) { return decode(text); }));
        set_decode_stats(before, session_.stats(), &row);
        rows->push_back(std::move(row));
      }
    }
    return {};
  }

 private:
  // Brings the weights into memory and the threads to life.
  Status warm_up() {
    const auto count = std::min<size_t>(tokens_.size(), 16);
    if (count > 1) LD_RETURN_IF_ERROR(session_.prefill(tokens_.first(count - 1), nullptr));
    LD_RETURN_IF_ERROR(session_.decode(tokens_[count - 1]));
    return restore(context_, &session_);
  }

  Status fill(int64_t depth) {
    LD_RETURN_IF_ERROR(restore(context_, &session_));
    const int64_t missing = depth - session_.num_tokens();
    if (missing > 0) {
      const std::string task = fmt::format("{}: context of {}", method_, depth);
      LD_RETURN_IF_ERROR(session_.prefill(text_after(session_.num_tokens(), missing),
                                          Progress(task, options_.progress)));
    }
    LD_ASSIGN_OR_RETURN(context_, capture(session_));
    return {};
  }

  Status measure(int64_t count, BenchModelRow* row,
                 const std::function<Status(std::span<const int32_t>)>& work) {
    for (int64_t rep = 0; rep < options_.num_reps; ++rep) {
      LD_RETURN_IF_ERROR(restore(context_, &session_));
      const Stopwatch watch;
      LD_RETURN_IF_ERROR(work(text_after(context_.point.num_tokens, count)));
      row->tok_s.push_back(static_cast<double>(count) / watch.seconds());
    }
    if (options_.progress) {
      write_stderr(fmt::format("{} {}: {:.1f} tok/s\n", method_, row->test, row->mean()));
    }
    return {};
  }

  Status decode(std::span<const int32_t> text) {
    for (const int32_t token : text) LD_RETURN_IF_ERROR(session_.decode(token));
    return {};
  }

  std::span<const int32_t> text_after(int64_t position, int64_t count) const {
    return tokens_.subspan(static_cast<size_t>(position), static_cast<size_t>(count));
  }

  BenchModelRow make_row(const char* kind, int64_t count) const {
    BenchModelRow row;
    row.method = method_;
    row.device = device_name(session_.options().device.type);
    row.kernel = session_.kernel_name();
    row.kv_type = dtype_name(session_.options().kv_dtype);
    row.depth = context_.point.num_tokens;
    row.test = fmt::format("{}{} @ d{}", kind, count, row.depth);
    row.num_threads = session_.options().device.num_threads;
    return row;
  }

  const BenchModelOptions& options_;
  std::span<const int32_t> tokens_;
  std::string method_;
  runner::Session session_;
  runner::Snapshot context_;
};

std::string rows_json(const BenchModelOptions& options, const std::string& model_name,
                      const std::vector<BenchModelRow>& rows) {
  using Json = nlohmann::ordered_json;
  const auto number = [](std::optional<double> value) { return value ? Json(*value) : Json(); };
  Json list = Json::array();
  for (const BenchModelRow& row : rows) {
    list.push_back({{"model", options.model_path},
                    {"model_name", model_name},
                    {"device", row.device},
                    {"method", row.method},
                    {"kernel", row.kernel},
                    {"batch", 1},
                    {"depth", row.depth},
                    {"test", row.test},
                    {"tok_s", row.mean()},
                    {"tok_s_stdev", row.stdev()},
                    {"samples_tok_s", row.tok_s},
                    {"kept_fraction", number(row.kept_fraction)},
                    {"kv_bytes_read_per_token", number(row.kv_bytes_read_per_token)},
                    {"delta", options.session.ffd.delta},  // infinity becomes null
                    {"kv_type", row.kv_type},
                    {"text", options.text_path.empty() ? "synthetic" : options.text_path},
                    {"num_threads", row.num_threads},
                    {"version", build_info().version},
                    {"commit", build_info().commit}});
  }
  return list.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string rows_table(const std::string& model_name, const std::vector<BenchModelRow>& rows) {
  // --device auto may have found the GPU without kernels for one of the methods.
  const auto on_cpu = std::find_if(rows.begin(), rows.end(),
                                   [](const BenchModelRow& row) { return row.device == "cpu"; });
  const std::string threads =
      on_cpu == rows.end() ? "" : fmt::format(", {} CPU threads", on_cpu->num_threads);
  std::string table = fmt::format("{}{}\n{:<8}{:<7}{:<18}{:>20}{:>8}{:>16}\n", model_name, threads,
                                  "method", "device", "test", "tok/s", "kept", "KV read/token");
  for (const BenchModelRow& row : rows) {
    table += fmt::format("{:<8}{:<7}{:<18}{:>11.1f} ± {:>6.1f}", row.method, row.device, row.test,
                         row.mean(), row.stdev());
    if (row.kept_fraction) {
      table += fmt::format("{:>8.3f}{:>12.1f} MiB", *row.kept_fraction,
                           *row.kv_bytes_read_per_token / (1 << 20));
    }
    table += '\n';
  }
  return table;
}

Result<std::vector<int32_t>> bench_tokens(const BenchModelOptions& options,
                                          const runner::Model& model) {
  const int64_t needed = options.context_len();
  if (needed > model.config().context_len) {
    return invalid_argument(
        "-d and the larger of -p and -n are {} tokens; the model's context is {}", needed,
        model.config().context_len);
  }
  std::vector<int32_t> tokens;
  if (options.text_path.empty()) {
    LD_ASSIGN_OR_RETURN(const auto tokenizer, model_tokenizer(model.file()));
    tokens = tokenizer.encode(synthetic_text(needed), {}).ids;
    if (static_cast<int64_t>(tokens.size()) < needed) {
      return unsupported("the vocabulary of the model does not cover English; give a text with -f");
    }
  } else {
    LD_ASSIGN_OR_RETURN(tokens, read_text_tokens(options.text_path, model, 0, needed));
  }
  tokens.resize(static_cast<size_t>(needed));
  return tokens;
}

Status run_bench_model(const BenchModelOptions& options) {
  LD_ASSIGN_OR_RETURN(const JsonOutput output,
                      JsonOutput::open(options.json_path, {options.model_path, options.text_path}));
  LD_ASSIGN_OR_RETURN(const auto model, load_model(options.model_path));
  LD_RETURN_IF_ERROR(check_layers(options.session, model->config()));
  LD_ASSIGN_OR_RETURN(const auto tokens, bench_tokens(options, *model));
  std::vector<BenchModelRow> rows;
  for (const std::string& method : options.methods) {
    LD_ASSIGN_OR_RETURN(auto session, open_session(model, options.session, parse_method(method),
                                                   options.context_len(), options.progress));
    LD_RETURN_IF_ERROR(MethodBench(options, tokens, method, std::move(session)).run(&rows));
  }
  const std::string& name = model->config().name;
  if (!output.is_stdout()) LD_RETURN_IF_ERROR(write_stdout(rows_table(name, rows)));
  return output.write(rows_json(options, name, rows));
}

// -m on the command line: LONGDECODE_MODEL alone gives way to --random-weights.
bool is_model_given(const BenchModelOptions& options) {
  const char* variable = std::getenv("LONGDECODE_MODEL");
  return !options.model_path.empty() && (variable == nullptr || options.model_path != variable);
}

Status check_batches(const BenchModelOptions& options, bool is_random) {
  for (const int32_t batch : options.batches) {
    if (batch >= 1 && batch <= (is_random ? runner::kMaxCudaBatch : 1)) continue;
    return invalid_argument("--batch is {}; allowed: {}", batch,
                            is_random ? fmt::format("1 to {}", runner::kMaxCudaBatch)
                                      : "1 (more with --random-weights alone)");
  }
  return {};
}

// --device auto has no choice with --random-weights.
Status take_cuda(SessionFlags& session) {
  if (session.device == "cuda") return {};
  LD_RETURN_IF_ERROR(check_cuda_kv_type(session));
  session.device = "cuda";
  return in_context("--random-weights runs on CUDA: ", detect_device(DeviceType::kCuda).status());
}

Status check(const CLI::App& command, BenchModelOptions& options) {
  const bool is_random = command.count("--random-weights") > 0;
  if (is_random && is_model_given(options)) {
    return invalid_argument("-m and --random-weights exclude each other");
  }
  LD_RETURN_IF_ERROR(is_random ? check_bench_random_model(options)
                               : check_model_path(options.model_path));
  LD_RETURN_IF_ERROR(check_within("-p", options.prompt_tokens, 0, kMaxCount));
  LD_RETURN_IF_ERROR(check_within("-n", options.decode_tokens, 0, kMaxCount));
  if (options.prompt_tokens == 0 && options.decode_tokens == 0) {
    return invalid_argument("-p and -n are 0; one of them must be 1 or more");
  }
  LD_RETURN_IF_ERROR(check_within("-r", options.num_reps, 1, kMaxCount));
  for (const int64_t depth : options.depths) {
    LD_RETURN_IF_ERROR(check_within("-d", depth, 0, kMaxCount));
  }
  for (const std::string& method : options.methods) {
    LD_RETURN_IF_ERROR(check_choice("--method", method, {"dense", "ffd"}));
  }
  LD_RETURN_IF_ERROR(check_batches(options, is_random));
  if (!is_random) LD_RETURN_IF_ERROR(check_one_graph(options.session));
  LD_RETURN_IF_ERROR(check_session_flags(command, options.session));
  if (!is_random) return {};
  LD_RETURN_IF_ERROR(take_cuda(options.session));
  for (const std::string& flag :
       given_flags(command, {"--file", "--n-prompt", "--dense-layers", "--layer-delta"})) {
    print_note(fmt::format("{} has no effect with --random-weights", flag));
  }
  return {};
}

}  // namespace

void add_bench_model(CLI::App& bench, Status& outcome) {
  CLI::App* command = bench.add_subcommand("model", "Time prefill and decode of a model");
  auto options = std::make_shared<BenchModelOptions>();
  command->option_defaults()->always_capture_default();
  command->add_option("-m,--model", options->model_path, "Model, a GGUF file (required)")
      ->type_name("FILE")
      ->envname("LONGDECODE_MODEL");
  command
      ->add_option("--random-weights", options->random_model,
                   "In place of -m, on CUDA: llama-3.1-8b, qwen2.5-7b or smollm2-135m with random "
                   "weights; decode rows alone, for throughput only")
      ->type_name("MODEL");
  command->add_option("-f,--file", options->text_path, "Text of the context, UTF-8; -: stdin")
      ->type_name("FILE");
  command->add_option("-p,--n-prompt", options->prompt_tokens, "Tokens to prefill; 0: no such row");
  command->add_option("-n,--n-gen", options->decode_tokens, "Decode steps; 0: no such row");
  add_list_option(*command, "-d,--n-depth", options->depths, "Tokens of context before them");
  add_list_option(*command, "-b,--batch", options->batches,
                  "Sequences decoded together; above 1 with --random-weights alone");
  command->add_option("-r,--repetitions", options->num_reps, "Timed repetitions of each row");
  add_list_option(*command, "--method", options->methods, "dense, ffd");
  add_session_flags(*command, options->session);
  add_json_flag(*command, options->json_path);
  add_progress_flag(*command, options->progress);
  command->footer(kFooter);
  command->callback([command, options, &outcome] {
    outcome = check(*command, *options);
    if (!outcome.ok()) return;
    outcome = options->random_model.empty() ? run_bench_model(*options)
                                            : run_bench_random_model(*options);
  });
}

}  // namespace longdecode::tool
