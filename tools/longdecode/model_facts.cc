#include "model_facts.h"

#include <map>

#include "base/status_macros.h"
#include "longdecode/kv_format.h"
#include "model_file.h"
#include "runner/model/session.h"
#include "runner/tokenizer/from_gguf.h"

namespace longdecode::tool {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kPageSize = 128;

double kv_bytes_per_token(const runner::ModelConfig& config, KeyEncoding keys) {
  const KvFormat format =
      KvFormat::gqa(keys, DType::kF16, config.num_kv_heads, config.head_dim, kPageSize);
  return format.bytes_per_token() * config.num_layers;
}

Json tensor_types(const runner::GgufFile& file) {
  std::map<std::string, int64_t> counts;
  for (const runner::GgufTensor& tensor : file.tensors()) ++counts[tensor.type_name()];
  return counts;
}

Json chat_template(const runner::GgufFile& file) {
  const auto chat = runner::load_chat_template(file);
  if (chat.ok()) return chat->name();
  return nullptr;
}

}  // namespace

Result<Json> model_facts(const std::string& path) {
  LD_ASSIGN_OR_RETURN(const auto model, load_model(path));
  const runner::GgufFile& file = model->file();
  const runner::ModelConfig& config = model->config();
  LD_ASSIGN_OR_RETURN(const auto data, runner::tokenizer_data(file));
  LD_ASSIGN_OR_RETURN(const auto tokenizer, model_tokenizer(file));
  return Json{{"path", path},
              {"name", config.name},
              {"architecture", config.architecture},
              {"file_bytes", file.num_bytes()},
              {"weight_bytes", model->weight_bytes()},
              {"num_layers", config.num_layers},
              {"hidden_dim", config.hidden_dim},
              {"ffn_dim", config.ffn_dim},
              {"num_q_heads", config.num_q_heads},
              {"num_kv_heads", config.num_kv_heads},
              {"head_dim", config.head_dim},
              {"context_len", config.context_len},
              {"vocab_size", config.vocab_size},
              {"rope_freq_base", config.rope_freq_base},
              {"tensor_types", tensor_types(file)},
              {"tokenizer", data.model + "/" + data.pre},
              {"eos_id", tokenizer.eos_id()},
              {"adds_bos", tokenizer.adds_bos()},
              {"chat_template", chat_template(file)},
              {"kv_bytes_per_token_dense", kv_bytes_per_token(config, KeyEncoding::kPlain)},
              {"kv_bytes_per_token_ffd", kv_bytes_per_token(config, KeyEncoding::kTwoPlane)}};
}

}  // namespace longdecode::tool
