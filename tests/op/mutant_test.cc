// The checks reject wrong kernels: each mutant is right but for one fault, on inputs of the suite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/float_convert.h"
#include "ref/decode.h"
#include "tests/support/check.h"

namespace longdecode::testing {
namespace {

// Runs `base` with Q changed by edit(element index in a row, value).
Outputs with_query(const DecodeFn& base, const DecodeDesc& desc, DecodeArgs args,
                   const std::function<float(int64_t, float)>& edit) {
  const std::vector<double> q = ref::read_tensor(args.q);
  std::vector<float> changed(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    changed[i] = edit(static_cast<int64_t>(i) % args.q.shape[3], static_cast<float>(q[i]));
  }
  args.q =
      TensorView::contiguous(changed.data(), DType::kF32,
                             {args.q.shape[0], args.q.shape[1], args.q.shape[2], args.q.shape[3]});
  return base(desc, args);
}

// Runs the reference with every sequence's attention replaced by attend(problem).
using AttendFn = std::function<ref::AttentionOutput(const ref::AttentionProblem&,
                                                    const ref::TileSet*, const DecodeDesc&)>;
DecodeFn with_attend(AttendFn attend) {
  return [attend](const DecodeDesc& desc, const DecodeArgs& args) {
    Outputs outputs = run_reference(desc, args);
    for (int32_t b = 0; b < args.batch.batch; ++b) {
      const ref::PagedSource kv(args.kv, args.batch, b);
      const ref::AttentionProblem problem = ref::make_problem(desc, args, b, kv);
      const ref::TileSet* tiles =
          desc.method == Method::kFfd ? &outputs.tiles[static_cast<size_t>(b)] : nullptr;
      set_sequence(desc, args, b, attend(problem, tiles, desc), &outputs);
    }
    return outputs;
  };
}

// Each query token attends to the tokens before its own position + shift.
ref::AttentionOutput shifted_mask(const ref::AttentionProblem& problem, int64_t shift) {
  ref::AttentionProblem open = problem;
  open.causal = false;
  ref::AttentionOutput out = ref::attend(problem);
  const auto heads = static_cast<size_t>(problem.num_q_heads);
  const auto dim = static_cast<size_t>(problem.kv->value_dim());
  for (int32_t t = 0; t < problem.query_len; ++t) {
    const int64_t end =
        std::clamp<int64_t>(problem.position(t) + 1 + shift, 0, problem.kv->kv_len());
    const ref::AttentionOutput row = ref::attend(open, nullptr, 0, end);
    const size_t first = static_cast<size_t>(t) * heads;
    std::copy_n(row.lse.begin() + static_cast<std::ptrdiff_t>(first), heads,
                out.lse.begin() + static_cast<std::ptrdiff_t>(first));
    std::copy_n(row.o.begin() + static_cast<std::ptrdiff_t>(first * dim), heads * dim,
                out.o.begin() + static_cast<std::ptrdiff_t>(first * dim));
  }
  return out;
}

// Runs the reference with other lengths.
Outputs with_lengths(const DecodeDesc& desc, DecodeArgs args,
                     const std::function<int32_t(int32_t)>& edit) {
  std::vector<int32_t> lengths(args.batch.kv_lens, args.batch.kv_lens + args.batch.batch);
  for (int32_t& length : lengths) length = edit(length);
  args.batch.kv_lens = lengths.data();
  return run_reference(desc, args);
}

struct Mutant {
  const char* name;
  DecodeFn run;
};

void expect_rejected(const ProblemSpec& spec, const std::vector<Mutant>& mutants) {
  ASSERT_EQ(run_and_check(spec, run_reference), "");
  for (const Mutant& mutant : mutants) {
    EXPECT_NE(run_and_check(spec, mutant.run), "") << "survived: " << mutant.name << "\n"
                                                   << repro(spec);
  }
}

std::vector<Mutant> dense_mutants() {
  return {
      {"Q ignored",
       [](const DecodeDesc& d, const DecodeArgs& a) {
         return with_query(run_reference, d, a, [](int64_t, float) { return 0.0f; });
       }},
      {"scale off by 0.1%",
       [](const DecodeDesc& d, const DecodeArgs& a) {
         return with_query(run_reference, d, a, [](int64_t, float x) { return 1.001f * x; });
       }},
      {"last page skipped", with_attend([](const auto& p, const auto* tiles, const DecodeDesc& d) {
         const int64_t page = d.format.page_size;
         return ref::attend(p, tiles, 0, (p.kv->kv_len() - 1) / page * page);
       })},
      {"one split dropped", with_attend([](const auto& p, const auto* tiles, const DecodeDesc&) {
         const int64_t n = p.kv->kv_len();
         return ref::merge({ref::attend(p, tiles, 0, n / 2), ref::attend(p, tiles, 3 * n / 4, n)},
                           p.kv->value_dim());
       })},
      {"one token read twice", with_attend([](const auto& p, const auto* tiles, const DecodeDesc&) {
         const int64_t n = p.kv->kv_len();
         return ref::merge({ref::attend(p, tiles), ref::attend(p, tiles, n - 1, n)},
                           p.kv->value_dim());
       })},
      {"lse in log2",
       [](const DecodeDesc& d, const DecodeArgs& a) {
         Outputs outputs = run_reference(d, a);
         for (double& lse : outputs.lse) lse *= 1.4426950408889634;
         return outputs;
       }},
      {"stale length",
       [](const DecodeDesc& d, const DecodeArgs& a) {
         return with_lengths(d, a, [](int32_t length) { return std::max(0, length - 1); });
       }},
      {"0 * NaN of the page tail",
       [](const DecodeDesc& d, const DecodeArgs& a) {
         Outputs outputs = run_reference(d, a);
         const int64_t tail = a.batch.kv_lens[0];
         const int32_t page = a.batch.block_table[tail / d.format.page_size];
         const TensorView& v = d.format.op == Op::kMla ? a.kv.k : a.kv.v;
         const double leaked = static_cast<double>(load_element(
             v.data, v.dtype, page * v.stride[0] + tail % d.format.page_size * v.stride[2]));
         outputs.o[0] += 0.0 * leaked;
         return outputs;
       }},
      {"an input is written",
       [](const DecodeDesc& d, const DecodeArgs& a) {
         Outputs outputs = run_reference(d, a);
         static_cast<uint8_t*>(a.q.data)[0] ^= 1u;
         return outputs;
       }},
  };
}

TEST(Mutants, QuickOfDenseAttention) {
  for (const double deviation : {0.01, 1.0, 3.0}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      ProblemSpec spec = gqa_spec(Method::kDense, dtype, 8, 2, 64, 16, {301, 150});
      spec.score_deviation = deviation;
      std::vector<Mutant> mutants = dense_mutants();
      // At 0.01 nats a tenth of a percent of the scores is below the rounding of anything.
      if (deviation < 1.0) mutants.erase(mutants.begin() + 1);
      expect_rejected(spec, mutants);
    }
  }
}

TEST(Mutants, QuickOfMasksAndOptions) {
  ProblemSpec spec = gqa_spec(Method::kDense, DType::kBF16, 4, 2, 64, 16, {300, 0, 3, 77});
  spec.query_len = 4;
  spec.query_lens = {4, 2, 4, 1};
  const auto with_desc = [](const std::function<void(DecodeDesc*)>& edit) -> DecodeFn {
    return [edit](DecodeDesc d, const DecodeArgs& a) {
      edit(&d);
      return run_reference(d, a);
    };
  };
  expect_rejected(
      spec, {{"mask one too far", with_attend([](const auto& p, const auto*, const DecodeDesc&) {
                return shifted_mask(p, 1);
              })},
             {"mask one too short", with_attend([](const auto& p, const auto*, const DecodeDesc&) {
                return shifted_mask(p, -1);
              })},
             {"no mask", with_desc([](DecodeDesc* d) { d->causal = false; })},
             {"query_lens ignored",
              [](const DecodeDesc& d, DecodeArgs a) {
                a.batch.query_lens = nullptr;
                return run_reference(d, a);
              }},
             {"a finite lse where nothing is visible",
              [](const DecodeDesc& d, const DecodeArgs& a) {
                Outputs outputs = run_reference(d, a);
                for (double& lse : outputs.lse) lse = std::max(lse, -1e30);
                return outputs;
              }},
             {"padding rows left unwritten", [](const DecodeDesc& d, const DecodeArgs& a) {
                Outputs outputs = run_reference(d, a);
                outputs.o.back() = std::numeric_limits<double>::quiet_NaN();
                return outputs;
              }}});
  spec.desc.soft_cap = 4.0f;
  spec.desc.sliding_window = 50;
  spec.desc.learned_sinks = true;
  spec.score_deviation = 2.0;
  expect_rejected(
      spec, {{"soft cap ignored", with_desc([](DecodeDesc* d) { d->soft_cap = 0.0f; })},
             {"window one too long", with_desc([](DecodeDesc* d) { d->sliding_window = 51; })},
             {"sinks ignored", with_desc([](DecodeDesc* d) { d->learned_sinks = false; })},
             {"a sink per split", with_attend([](const auto& p, const auto*, const DecodeDesc&) {
                const int64_t n = p.kv->kv_len();
                const int64_t middle = std::max<int64_t>(0, n - 20);
                return ref::merge(
                    {ref::attend(p, nullptr, 0, middle), ref::attend(p, nullptr, middle, n)},
                    p.kv->value_dim());
              })}});
}

TEST(Mutants, QuickOfMla) {
  ProblemSpec spec = mla_spec(DType::kBF16, 5, 64, {200, 65});
  std::vector<Mutant> mutants = dense_mutants();
  mutants.push_back({"RoPE part dropped", [](const DecodeDesc& d, const DecodeArgs& a) {
                       return with_query(run_reference, d, a, [](int64_t c, float x) {
                         return c < kMlaValueDim ? x : 0.0f;
                       });
                     }});
  for (const double deviation : {0.01, 1.0, 3.0}) {
    spec.score_deviation = deviation;
    std::vector<Mutant> these = mutants;
    if (deviation < 1.0) these.erase(these.begin() + 1);
    expect_rejected(spec, these);
  }
}

// Selections of only the first query head of each group; `lie` reports the right tiles.
Outputs first_heads_selection(const DecodeDesc& desc, const DecodeArgs& args, bool lie) {
  Outputs outputs = run_reference(desc, args);
  for (int32_t b = 0; b < args.batch.batch; ++b) {
    const ref::PagedSource kv(args.kv, args.batch, b);
    ref::AttentionProblem problem = ref::make_problem(desc, args, b, kv);
    ref::AttentionProblem copied = problem;
    const int32_t dim = kv.key_dim();
    for (int32_t row = 0; row < problem.query_len * problem.num_q_heads; ++row) {
      const int32_t leader = row / problem.group() * problem.group();
      std::copy_n(problem.q.begin() + leader * dim, dim, copied.q.begin() + row * dim);
    }
    const ref::Selection selection = ref::select(copied, kv, desc.ffd, {});
    set_sequence(desc, args, b, ref::attend(problem, &selection.tiles), &outputs);
    if (!lie) outputs.tiles[static_cast<size_t>(b)] = selection.tiles;
  }
  return outputs;
}

// Attends to the 2-bit keys where it should attend to both planes.
class ScanKeys : public ref::PagedSource {
 public:
  using PagedSource::PagedSource;
  void key(int32_t kv_head, int64_t token, double* row) const override {
    if (token < num_quantized_tokens()) return scan_key(kv_head, token, row);
    PagedSource::key(kv_head, token, row);
  }
};

TEST(Mutants, QuickOfFfd) {
  ProblemSpec spec = gqa_spec(Method::kFfd, DType::kBF16, 8, 2, 64, 64, {1100, 300});
  spec.desc.ffd.sink_tokens = 20;
  spec.desc.ffd.recent_tokens = 20;
  spec.desc.ffd.delta = 1.0f;
  spec.score_deviation = 3.0;
  spec.edit = [](LogicalSequence& s, int32_t) {
    for (int32_t h = 0; h < 2; ++h) s.plant_score(200, 4 * h + 2, 30.0, 1.0 / 8.0);
  };
  const auto with_ffd = [](const std::function<void(FfdOptions*)>& edit) -> DecodeFn {
    return [edit](DecodeDesc d, const DecodeArgs& a) {
      edit(&d.ffd);
      return run_reference(d, a);
    };
  };
  std::vector<Mutant> mutants = dense_mutants();
  mutants.insert(
      mutants.end(),
      {{"one head's selection for all",
        [](const DecodeDesc& d, const DecodeArgs& a) {
          return first_heads_selection(d, a, false);
        }},
       {"one head's selection for all, reported as if right",
        [](const DecodeDesc& d, const DecodeArgs& a) { return first_heads_selection(d, a, true); }},
       {"sink tokens not kept", with_ffd([](FfdOptions* f) { f->sink_tokens = 0; })},
       {"recent tokens not kept", with_ffd([](FfdOptions* f) { f->recent_tokens = 0; })},
       {"delta in bits", with_ffd([](FfdOptions* f) { f->delta *= 0.6931472f; })},
       {"everything kept", with_ffd([](FfdOptions* f) { f->delta = 1e30f; })},
       {"residual plane not read",
        [](const DecodeDesc& d, const DecodeArgs& a) {
          Outputs outputs = run_reference(d, a);
          for (int32_t b = 0; b < a.batch.batch; ++b) {
            const ScanKeys kv(a.kv, a.batch, b);
            set_sequence(
                d, a, b,
                ref::attend(ref::make_problem(d, a, b, kv), &outputs.tiles[static_cast<size_t>(b)]),
                &outputs);
          }
          return outputs;
        }},
       {"statistics of the dense method", [](const DecodeDesc& d, const DecodeArgs& a) {
          Outputs outputs = run_reference(d, a);
          outputs.tokens_attended[0] = a.batch.kv_lens[0];
          return outputs;
        }}});
  expect_rejected(spec, mutants);
}

}  // namespace
}  // namespace longdecode::testing
