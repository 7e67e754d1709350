#include "benchmarks/study/study.h"

#include <optional>
#include <utility>

namespace longdecode::study {
Result<std::vector<LayerResult>> run_study(
    const std::vector<LayerSample>& samples, uint64_t seed, int32_t num_threads,
    const std::function<void(int64_t done, int64_t total)>& progress) {
  struct Task {
    size_t sample_idx;
    int32_t kv_head;
  };
  std::vector<Task> tasks;
  for (size_t s = 0; s < samples.size(); ++s) {
    for (int32_t h = 0; h < samples[s].num_kv_heads; ++h) tasks.push_back({s, h});
  }
  std::vector<std::optional<Result<HeadResult>>> results(tasks.size());
  int64_t done = 0;
#pragma omp parallel for schedule(dynamic) num_threads(num_threads)
  for (size_t i = 0; i < tasks.size(); ++i) {
    results[i] = study_head(samples[tasks[i].sample_idx], tasks[i].kv_head, seed);
#pragma omp critical
    if (progress) progress(++done, static_cast<int64_t>(tasks.size()));
  }
  std::vector<LayerResult> layers;
  for (const LayerSample& sample : samples) layers.push_back({sample.source, sample.layer_idx, {}});
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!results[i]->ok()) return results[i]->status();
    layers[tasks[i].sample_idx].sums.add(results[i]->value());
  }
  return layers;
}

}  // namespace longdecode::study
