#include "runner/tokenizer/from_gguf.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"

namespace longdecode::runner {
namespace {

Result<int64_t> token_id(const GgufFile& file, std::string_view key) {
  return file.get_int_or(key, -1, std::numeric_limits<uint32_t>::max(), -1);
}

}  // namespace

Result<TokenizerData> tokenizer_data(const GgufFile& file) {
  TokenizerData data;
  LD_ASSIGN_OR_RETURN(data.model, file.get_string("tokenizer.ggml.model"));
  // Nothing can be assumed where the key is missing: the pieces would be wrong without a sign.
  LD_ASSIGN_OR_RETURN(data.pre, file.get_string("tokenizer.ggml.pre"));
  LD_ASSIGN_OR_RETURN(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
  data.tokens.assign(tokens.begin(), tokens.end());
  if (file.has("tokenizer.ggml.token_type")) {
    LD_ASSIGN_OR_RETURN(const auto types, file.get_ints("tokenizer.ggml.token_type"));
    for (int64_t type : types) data.types.push_back(static_cast<int32_t>(type));
  }
  LD_ASSIGN_OR_RETURN(const auto merges, file.get_strings("tokenizer.ggml.merges"));
  data.merges.assign(merges.begin(), merges.end());
  LD_ASSIGN_OR_RETURN(data.bos_id, token_id(file, "tokenizer.ggml.bos_token_id"));
  LD_ASSIGN_OR_RETURN(data.eos_id, token_id(file, "tokenizer.ggml.eos_token_id"));
  LD_ASSIGN_OR_RETURN(data.eot_id, token_id(file, "tokenizer.ggml.eot_token_id"));
  // Files write -1 as an unsigned 32-bit number for "none".
  for (int64_t* id : {&data.bos_id, &data.eos_id, &data.eot_id}) {
    if (*id == std::numeric_limits<uint32_t>::max()) *id = -1;
  }
  if (file.has("tokenizer.ggml.add_bos_token")) {
    LD_ASSIGN_OR_RETURN(data.add_bos, file.get_bool("tokenizer.ggml.add_bos_token"));
  }
  return data;
}

namespace {

// A model that chose an id without a token would lose text silently; an id without a row of the
// embedding has no meaning.
Status check_embedding_rows(const GgufFile& file, const TokenizerData& data) {
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) return {};  // a file of the vocabulary alone
  const auto num_tokens = static_cast<int64_t>(data.tokens.size());
  if (embedding->shape[1] == num_tokens) return {};
  return data_loss(
      "'{}': the tokenizer has {} tokens and tensor 'token_embd.weight' {} rows; "
      "they must be as many",
      printable(file.path()), num_tokens, embedding->shape[1]);
}

}  // namespace

Result<Tokenizer> load_tokenizer(const GgufFile& file) {
  LD_ASSIGN_OR_RETURN(TokenizerData data, tokenizer_data(file));
  LD_RETURN_IF_ERROR(check_embedding_rows(file, data));
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(data));
  if (tokenizer.ok()) return tokenizer;
  return in_context(fmt::format("'{}': ", printable(file.path())), tokenizer.status());
}

Result<ChatTemplate> load_chat_template(const GgufFile& file) {
  LD_ASSIGN_OR_RETURN(const auto text, file.get_string_or("tokenizer.chat_template", ""));
  return ChatTemplate::recognize(text);
}

}  // namespace longdecode::runner
