/* The C ABI: a cache and a plan, one decode step per token, the last one checked against the
 * textbook formula. Exits with 1 when the result is wrong. */
#include <longdecode/c_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kNumQHeads = 4, kNumKvHeads = 2, kHeadDim = 64, kKvLen = 100 };

static float keys[kKvLen][kNumKvHeads][kHeadDim];
static float values[kKvLen][kNumKvHeads][kHeadDim];

static void check(ld_status_code code, const char* what) {
  if (code == LD_OK) return;
  fprintf(stderr, "%s: error %d: %s\n", what, (int)code, ld_last_error());
  exit(1);
}

/* Deterministic numbers in [-1, 1). */
static float next_value(void) {
  static uint32_t state = 1;
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static ld_tensor rows(void* data, int64_t num_heads) {
  int64_t shape[4];
  shape[0] = 1;
  shape[1] = 1;
  shape[2] = num_heads;
  shape[3] = kHeadDim;
  return ld_tensor_contiguous(data, LD_DTYPE_F32, 4, shape);
}

/* Appends token t and attends to all tokens so far. */
static void step(ld_cache* cache, ld_plan* plan, int32_t sequence, int t, float* q, float* o,
                 float* lse) {
  const int32_t one = 1;
  const ld_tensor k_tensor = rows(keys[t], kNumKvHeads);
  const ld_tensor v_tensor = rows(values[t], kNumKvHeads);
  const ld_tensor q_tensor = rows(q, kNumQHeads);
  const ld_tensor o_tensor = rows(o, kNumQHeads);
  ld_kv_layer layer = ld_kv_layer_default();
  ld_batch batch = ld_batch_default();
  ld_decode_args args = ld_decode_args_default();
  check(ld_cache_reserve(cache, &sequence, &one, 1), "ld_cache_reserve");
  check(ld_cache_append(cache, 0, &k_tensor, &v_tensor, NULL), "ld_cache_append");
  check(ld_cache_layer(cache, 0, &layer), "ld_cache_layer");
  check(ld_cache_step(cache, &batch), "ld_cache_step");
  args.q = &q_tensor;
  args.o = &o_tensor;
  args.lse = lse;
  args.kv = &layer;
  args.batch = &batch;
  check(ld_plan_run(plan, &args, NULL), "ld_plan_run");
  check(ld_cache_commit(cache), "ld_cache_commit");
}

/* Largest difference to softmax(q . k / sqrt(head_dim)) v of one query head. */
static double error_of_head(const float* q, const float* o, int kv_head) {
  double expected[kHeadDim] = {0};
  double denominator = 0.0;
  double error = 0.0;
  int j, c;
  for (j = 0; j < kKvLen; ++j) {
    double score = 0.0;
    double weight;
    for (c = 0; c < kHeadDim; ++c) score += (double)q[c] * keys[j][kv_head][c];
    weight = exp(score / sqrt((double)kHeadDim));
    denominator += weight;
    for (c = 0; c < kHeadDim; ++c) expected[c] += weight * values[j][kv_head][c];
  }
  for (c = 0; c < kHeadDim; ++c) {
    const double difference = fabs(expected[c] / denominator - o[c]);
    error = fmax(error, isnan(difference) ? INFINITY : difference); /* fmax drops a NaN */
  }
  return error;
}

int main(void) {
  static float q[kNumQHeads][kHeadDim];
  static float o[kNumQHeads][kHeadDim];
  float lse[kNumQHeads];
  const ld_kv_format format =
      ld_kv_format_gqa(LD_KEYS_PLAIN, LD_DTYPE_F32, kNumKvHeads, kHeadDim, 16);
  ld_device_info device = ld_device_info_default();
  ld_cache_desc cache_desc = ld_cache_desc_default();
  ld_decode_desc desc = ld_decode_desc_default();
  ld_kernel_choice kernel = ld_kernel_choice_default();
  ld_cache* cache = NULL;
  ld_plan* plan = NULL;
  void* workspace;
  int64_t workspace_bytes = 0;
  int64_t kv_len = 0;
  int32_t sequence = 0;
  double max_error = 0.0;
  int t, head, kv_head, c;

  check(ld_detect_device(LD_DEVICE_CPU, 0, &device), "ld_detect_device");
  cache_desc.format = &format;
  cache_desc.num_pages = 16;
  cache_desc.max_kv_len = 256;
  check(ld_cache_create(&cache_desc, &device, &cache), "ld_cache_create");
  desc.format = &format;
  desc.q_dtype = LD_DTYPE_F32;
  desc.num_q_heads = kNumQHeads;
  desc.max_kv_len = 256;
  check(ld_plan_create(&desc, &device, &plan), "ld_plan_create");
  check(ld_plan_kernel(plan, &kernel), "ld_plan_kernel");
  check(ld_plan_workspace_bytes(plan, &workspace_bytes), "ld_plan_workspace_bytes");
  workspace = malloc((size_t)workspace_bytes + 16); /* malloc aligns to 16 bytes */
  check(ld_plan_init(plan, workspace, NULL), "ld_plan_init");
  check(ld_cache_add_sequence(cache, &sequence), "ld_cache_add_sequence");

  for (t = 0; t < kKvLen; ++t) {
    for (kv_head = 0; kv_head < kNumKvHeads; ++kv_head) {
      for (c = 0; c < kHeadDim; ++c) {
        keys[t][kv_head][c] = next_value();
        values[t][kv_head][c] = next_value();
      }
    }
    for (head = 0; head < kNumQHeads; ++head) {
      for (c = 0; c < kHeadDim; ++c) q[head][c] = 4.0f * next_value();
    }
    step(cache, plan, sequence, t, q[0], o[0], lse);
  }

  check(ld_cache_kv_len(cache, sequence, &kv_len), "ld_cache_kv_len");
  for (head = 0; head < kNumQHeads; ++head) {
    max_error = fmax(max_error, error_of_head(q[head], o[head], head * kNumKvHeads / kNumQHeads));
  }
  printf("longdecode %s, %s (%s): %lld tokens, lse of head 0 %.4f, largest error %.2g\n",
         ld_version(), kernel.name, kernel.isa, (long long)kv_len, (double)lse[0], max_error);
  ld_plan_destroy(plan);
  ld_cache_destroy(cache);
  free(workspace);
  return max_error < 1e-5 ? 0 : 1;
}
