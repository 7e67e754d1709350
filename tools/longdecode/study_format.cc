#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "benchmarks/study/layer_sample.h"
#include "benchmarks/study/study.h"
#include "commands.h"
#include "model_file.h"
#include "option_checks.h"
#include "output.h"
#include "output_flags.h"
#include "progress.h"
#include "runner/model/session.h"
#include "session_options.h"
#include "study_format_report.h"
#include "text_tokens.h"

namespace longdecode::tool {
namespace {

constexpr const char* kExamples = R"(
Runs the model over each text, takes queries at sampled positions of the second half and evaluates
key grids, page sizes, tiles, margins and deltas on all layers and heads, and on synthetic keys.
docs/formats/key-format-study.md says what was found.

Example:
  longdecode study-format -m model.gguf -f book.txt -f licences.txt --json study.json)";

// Below this no page would be left beside sink and recent tokens.
constexpr int64_t kMinContext = 1024;

struct StudyOptions {
  std::string model_path;
  std::vector<std::string> text_paths;
  int64_t context_len = 6144;
  int64_t num_positions = 32;
  int64_t seed = 1;
  int32_t num_threads = 0;
  bool synthetic = true;
  bool progress = false;
  std::string json_path;
};

// All layers of the model over one text.
Result<std::vector<study::LayerSample>> sample_text(const StudyOptions& options,
                                                    std::shared_ptr<const runner::Model> model,
                                                    const std::string& path,
                                                    const std::vector<int32_t>& tokens) {
  const runner::ModelConfig& config = model->config();
  const std::vector<int64_t> positions = study::sample_positions(
      options.context_len, options.num_positions, static_cast<uint64_t>(options.seed));
  std::vector<study::LayerSample> samples(static_cast<size_t>(config.num_layers));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    study::LayerSample& sample = samples[static_cast<size_t>(layer)];
    sample.source = std::filesystem::path(path).filename().string();
    sample.layer_idx = layer;
    sample.num_kv_heads = config.num_kv_heads;
    sample.group = config.num_q_heads / config.num_kv_heads;
    sample.head_dim = config.head_dim;
    sample.positions = positions;
  }
  SessionFlags flags;
  flags.num_threads = options.num_threads;
  LD_ASSIGN_OR_RETURN(auto session_options,
                      session_options(flags, Method::kDense, options.context_len));
  session_options.observer = [&](const runner::LayerTensors& step) {
    study::LayerSample& sample = samples[static_cast<size_t>(step.layer_idx)];
    const int64_t kv = step.num_tokens * config.kv_dim();
    sample.k.insert(sample.k.end(), step.k, step.k + kv);
    sample.v.insert(sample.v.end(), step.v, step.v + kv);
    for (const int64_t position : positions) {
      const int64_t row = position - step.first_token;
      if (row < 0 || row >= step.num_tokens) continue;
      const float* q = step.q + row * config.q_dim();
      sample.q.insert(sample.q.end(), q, q + config.q_dim());
    }
    return Status();
  };
  LD_ASSIGN_OR_RETURN(auto session, runner::Session::create(model, session_options));
  LD_RETURN_IF_ERROR(session.prefill(tokens, Progress("prefill", options.progress)));
  return samples;
}

Status study_samples(const StudyOptions& options, const std::vector<study::LayerSample>& samples,
                     std::vector<study::LayerResult>* layers) {
  LD_ASSIGN_OR_RETURN(const DeviceInfo device, detect_device(DeviceType::kCpu));
  const int32_t num_threads = options.num_threads > 0 ? options.num_threads : device.num_threads;
  const Progress progress("study of kv heads", options.progress);
  LD_ASSIGN_OR_RETURN(
      const auto results,
      study::run_study(samples, static_cast<uint64_t>(options.seed), num_threads,
                       [&](int64_t done, int64_t total) { progress(done, total); }));
  layers->insert(layers->end(), results.begin(), results.end());
  return {};
}

Status run_study_format(const StudyOptions& options) {
  std::vector<std::string> inputs = options.text_paths;
  inputs.push_back(options.model_path);
  LD_ASSIGN_OR_RETURN(const JsonOutput output, JsonOutput::open(options.json_path, inputs));
  LD_ASSIGN_OR_RETURN(const auto model, load_model(options.model_path));
  std::vector<study::LayerResult> layers;
  std::vector<std::vector<int32_t>> texts;  // all of them before the work on the first
  for (const std::string& path : options.text_paths) {
    LD_ASSIGN_OR_RETURN(texts.emplace_back(),
                        read_text_tokens(path, *model, options.context_len, kMinContext));
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    LD_ASSIGN_OR_RETURN(const auto samples,
                        sample_text(options, model, options.text_paths[i], texts[i]));
    LD_RETURN_IF_ERROR(study_samples(options, samples, &layers));
  }
  if (options.synthetic) {
    std::vector<study::LayerSample> samples;
    for (const auto kind : {study::SyntheticKeys::kGaussian, study::SyntheticKeys::kBias,
                            study::SyntheticKeys::kOutlierChannels}) {
      samples.push_back(study::make_synthetic(kind, options.context_len, options.num_positions,
                                              static_cast<uint64_t>(options.seed)));
    }
    LD_RETURN_IF_ERROR(study_samples(options, samples, &layers));
  }
  StudyFacts facts;
  facts.model_path = options.model_path;
  facts.model_name = model->config().name;
  facts.text_paths = options.text_paths;
  facts.context_len = options.context_len;
  facts.num_positions = options.num_positions;
  facts.seed = static_cast<uint64_t>(options.seed);
  LD_RETURN_IF_ERROR(output.write(study_json(facts, layers)));
  return output.is_stdout() ? Status() : write_stdout(study_table(layers));
}

Status check(const CLI::App& command, const StudyOptions& options) {
  LD_RETURN_IF_ERROR(check_model_path(options.model_path));
  if (options.text_paths.empty()) return invalid_argument("no text: give -f FILE, once or more");
  LD_RETURN_IF_ERROR(check_within("-c", options.context_len, kMinContext, kMaxCount));
  LD_RETURN_IF_ERROR(
      check_within("--positions", options.num_positions, 1, options.context_len / 2));
  LD_RETURN_IF_ERROR(check_within("--seed", options.seed, 0, kMaxCount));
  return check_thread_flag(command, options.num_threads);
}

}  // namespace

void add_study_format(CLI::App& app, Status& outcome) {
  CLI::App* command =
      app.add_subcommand("study-format", "Compare key formats on a model's queries and keys");
  auto options = std::make_shared<StudyOptions>();
  command->option_defaults()->always_capture_default();
  add_text_flags(*command, options->model_path, options->context_len,
                 fmt::format("{} or more, ", kMinContext));
  command
      ->add_option("-f,--file", options->text_paths, "Text, plain UTF-8; once or more (required)")
      ->type_name("FILE")
      ->default_str("")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--positions", options->num_positions, "Queries of each text and head");
  command->add_option("-s,--seed", options->seed, "Seed of positions, needles and synthetic keys");
  command->add_flag("--synthetic,!--no-synthetic", options->synthetic, "Study synthetic keys, too");
  add_thread_flag(*command, options->num_threads);
  add_json_flag(*command, options->json_path);
  add_progress_flag(*command, options->progress);
  command->footer(kExamples);
  command->callback([command, options, &outcome] {
    outcome = check(*command, *options);
    if (outcome.ok()) outcome = run_study_format(*options);
  });
}

}  // namespace longdecode::tool
