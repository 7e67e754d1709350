#include "cuda/model/cublas_lt.h"

#include "base/errors.h"

// The header alone: the library is looked for at run time.
#if __has_include(<cublasLt.h>)

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <tuple>

#include "base/status_macros.h"
#include "cuda/host/status.h"
#include "cuda/kernels/rows/kernel.h"

namespace longdecode::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

// The functions of the library that are used.
struct Api {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  // False when a function is missing.
  bool load(void* library) {
    const auto find = [library](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
      return *function != nullptr;
    };
    return find(&create, "cublasLtCreate") && find(&destroy, "cublasLtDestroy") &&
           find(&get_version, "cublasLtGetVersion") &&
           find(&desc_create, "cublasLtMatmulDescCreate") &&
           find(&desc_destroy, "cublasLtMatmulDescDestroy") &&
           find(&desc_set, "cublasLtMatmulDescSetAttribute") &&
           find(&layout_create, "cublasLtMatrixLayoutCreate") &&
           find(&layout_destroy, "cublasLtMatrixLayoutDestroy") &&
           find(&preference_create, "cublasLtMatmulPreferenceCreate") &&
           find(&preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(&preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(&get_heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
           find(&matmul, "cublasLtMatmul");
  }
};

Status lt_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return make_status(StatusCode::kInternal, "{}: cuBLASLt error {}", what,
                     static_cast<int>(status));
}

// A product's shape with the algorithm chosen for it.
struct Problem {
  const Api* api = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Problem(const Api& functions) : api(&functions) {}
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
  ~Problem() {
    if (desc != nullptr) api->desc_destroy(desc);
    for (cublasLtMatrixLayout_t layout : {weight, x, y}) {
      if (layout != nullptr) api->layout_destroy(layout);
    }
  }

  // Column-major: y^T [rows, tokens] = (W^T [cols, rows])^T x^T [cols, tokens].
  Status init(const GemmArgs& args) {
    LD_RETURN_IF_ERROR(
        lt_status(api->desc_create(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "MatmulDescCreate"));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    LD_RETURN_IF_ERROR(lt_status(
        api->desc_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof(transpose)), "TRANSA"));
    const auto layout = [&](cublasLtMatrixLayout_t* to, cudaDataType_t type, int64_t rows,
                            int64_t cols) {
      return lt_status(api->layout_create(to, type, static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(cols), rows),
                       "MatrixLayoutCreate");
    };
    const bool bf16 = args.output == LinearOutput::kStoreBf16;
    LD_RETURN_IF_ERROR(layout(&weight, CUDA_R_16BF, args.num_cols, args.num_rows));
    LD_RETURN_IF_ERROR(layout(&x, CUDA_R_16BF, args.num_cols, args.num_tokens));
    return layout(&y, bf16 ? CUDA_R_16BF : CUDA_R_32F, args.num_rows, args.num_tokens);
  }

  Status choose(cublasLtHandle_t handle, const GemmArgs& args) {
    cublasLtMatmulPreference_t preference = nullptr;
    LD_RETURN_IF_ERROR(lt_status(api->preference_create(&preference), "MatmulPreferenceCreate"));
    const auto workspace = static_cast<uint64_t>(kWorkspaceBytes);
    cublasStatus_t status = api->preference_set(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = api->get_heuristic(handle, desc, weight, x, y, y, preference, 1, &result, &found);
    }
    api->preference_destroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0) {
      return unsupported("cuBLASLt has no algorithm for {} tokens, {} rows, {} columns (error {})",
                         args.num_tokens, args.num_rows, args.num_cols, static_cast<int>(status));
    }
    algorithm = result.algo;
    return {};
  }
};

class CublasLtGemm final : public Gemm {
 public:
  explicit CublasLtGemm(const DeviceInfo& device) : device_(device) {}
  ~CublasLtGemm() override {
    problems_.clear();
    if (handle_ != nullptr) api_.destroy(handle_);
    if (library_ != nullptr) dlclose(library_);
  }

  Status init() {
    for (const char* file : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (library_ == nullptr) library_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    }
    if (library_ == nullptr || !api_.load(library_)) {
      return make_status(StatusCode::kUnavailable,
                         "libcublasLt.so.13 and libcublasLt.so.12 are not there");
    }
    const DeviceGuard guard(device_.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    if (api_.create(&handle_) != CUBLAS_STATUS_SUCCESS) {
      return make_status(StatusCode::kUnavailable, "cuBLASLt does not start");
    }
    // major * 10000 + minor * 100 + patch
    const size_t version = api_.get_version();
    name_ = fmt::format("cublasLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    return {};
  }

  const std::string& name() const override { return name_; }
  int64_t workspace_bytes() const override { return kWorkspaceBytes; }

  Status run(const GemmArgs& args, void* workspace, StreamHandle handle) override {
    LD_RETURN_IF_ERROR(validate(args));
    const DeviceGuard guard(device_.device_idx);
    LD_RETURN_IF_ERROR(guard.status());
    LD_ASSIGN_OR_RETURN(const Problem* problem, find(args));
    const auto stream = static_cast<cudaStream_t>(handle);
    if (args.bias != nullptr) {
      const rows::FillRowsParams fill{args.bias, static_cast<float*>(args.y), args.num_tokens,
                                      static_cast<int32_t>(args.num_rows)};
      LD_RETURN_IF_ERROR(cuda_status(rows::launch(fill, stream), "launch of fill_rows"));
    }
    const float alpha = 1.0f;
    const float beta = args.output == LinearOutput::kAddF32 || args.bias != nullptr ? 1.0f : 0.0f;
    return lt_status(
        api_.matmul(handle_, problem->desc, &alpha, args.weight, problem->weight, args.x,
                    problem->x, &beta, args.y, problem->y, args.y, problem->y, &problem->algorithm,
                    workspace, static_cast<size_t>(kWorkspaceBytes), stream),
        "cublasLtMatmul");
  }

 private:
  Result<const Problem*> find(const GemmArgs& args) {
    const Key key{args.num_rows, args.num_cols, args.num_tokens, args.output};
    const auto known = problems_.find(key);
    if (known != problems_.end()) return known->second.get();
    auto problem = std::make_unique<Problem>(api_);
    LD_RETURN_IF_ERROR(problem->init(args));
    LD_RETURN_IF_ERROR(problem->choose(handle_, args));
    return problems_.emplace(key, std::move(problem)).first->second.get();
  }

  using Key = std::tuple<int64_t, int64_t, int64_t, LinearOutput>;
  DeviceInfo device_;
  std::string name_;
  void* library_ = nullptr;
  Api api_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Problem>> problems_;
};

}  // namespace

Result<std::unique_ptr<Gemm>> make_cublas_lt_gemm(const DeviceInfo& device) {
  auto gemm = std::make_unique<CublasLtGemm>(device);
  LD_RETURN_IF_ERROR(gemm->init());
  return std::unique_ptr<Gemm>(std::move(gemm));
}

}  // namespace longdecode::cuda

#else

namespace longdecode::cuda {

Result<std::unique_ptr<Gemm>> make_cublas_lt_gemm(const DeviceInfo&) {
  return make_status(StatusCode::kUnavailable, "this build had no cublasLt.h");
}

}  // namespace longdecode::cuda

#endif
