#include <utility>

#include "base/status_macros.h"
#include "runner/model/session.h"
#include "runner/model/weights.h"

namespace longdecode::runner {

struct Model::Impl {
  GgufFile file;
  ModelConfig config;
  ModelWeights weights;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

Result<std::shared_ptr<const Model>> Model::load(const std::string& path) {
  LD_ASSIGN_OR_RETURN(GgufFile file, GgufFile::open(path));
  return from_file(std::move(file));
}

Result<std::shared_ptr<const Model>> Model::from_file(GgufFile file) {
  LD_ASSIGN_OR_RETURN(ModelConfig config, read_model_config(file));
  LD_ASSIGN_OR_RETURN(ModelWeights weights, find_weights(file, config));
  auto impl = std::make_unique<Impl>(Impl{std::move(file), std::move(config), std::move(weights)});
  return std::shared_ptr<const Model>(new Model(std::move(impl)));
}

const GgufFile& Model::file() const { return impl_->file; }
const ModelConfig& Model::config() const { return impl_->config; }
const ModelWeights& Model::weights() const { return impl_->weights; }

int64_t Model::weight_bytes() const {
  int64_t num_bytes = 0;
  for (const GgufTensor& tensor : file().tensors()) {
    num_bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  return num_bytes;
}

}  // namespace longdecode::runner
