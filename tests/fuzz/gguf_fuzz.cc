// Any bytes as a GGUF file: parsed, every value and tensor read, its tokenizer used, its model
// loaded and, where it is one, run.
#include <cstdint>
#include <utility>
#include <vector>

#include "runner/model/session.h"
#include "runner/tokenizer/from_gguf.h"

namespace longdecode::fuzz {
namespace {

using runner::GgufFile;

// Keeps what is read from being optimised away.
volatile uint64_t g_sink = 0;

void read_values(const GgufFile& file) {
  uint64_t sum = 0;
  for (const std::string_view key : file.keys()) {
    const runner::GgufValue* value = file.find(key);
    for (const uint8_t byte : value->bytes) sum += byte;
    sum += file.get_int_or(key, INT64_MIN, INT64_MAX, 0).ok();
    sum += file.get_float_or(key, 0.0).ok();
    sum += file.get_bool_or(key, false).ok();
    const auto text = file.get_string(key);
    sum += text.ok() ? text->size() : 0;
    const auto strings = file.get_strings(key);
    sum += strings.ok() ? strings->size() : 0;
    const auto ints = file.get_ints(key);
    sum += ints.ok() ? ints->size() : 0;
    const auto floats = file.get_floats(key);
    sum += floats.ok() ? floats->size() : 0;
  }
  for (const runner::GgufTensor& tensor : file.tensors()) {
    for (const uint8_t byte : tensor.bytes) sum += byte;
    sum += tensor.shape_string().size() + static_cast<uint64_t>(tensor.num_elements());
    sum += runner::printable(tensor.name).size();
  }
  g_sink = g_sink + sum;
}

void use_tokenizer(const GgufFile& file) {
  const auto tokenizer = runner::load_tokenizer(file);
  if (!tokenizer.ok()) return;
  const auto encoding =
      tokenizer->encode("abc ab 12 <|im_end|> \xe2\x82\xac", {.parse_special = true});
  g_sink = g_sink + tokenizer->decode(encoding.ids, true).size();
  const auto chat = runner::load_chat_template(file);
  if (!chat.ok()) return;
  const std::vector<runner::ChatMessage> messages = {{"user", "abc"}};
  g_sink = g_sink + chat->encode(messages, *tokenizer).ok();
}

void run_model(GgufFile file) {
  const auto model = runner::Model::from_file(std::move(file));
  if (!model.ok()) return;
  runner::SessionOptions options;
  options.context_len = 8;
  options.page_size = 16;
  options.prefill_chunk = 8;
  options.device.num_threads = 1;
  auto session = runner::Session::create(*model, options);
  if (!session.ok()) return;
  const std::vector<int32_t> tokens(6, 0);
  if (session->prefill(tokens, nullptr).ok()) g_sink = g_sink + session->decode(0).ok();
}

}  // namespace
}  // namespace longdecode::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longdecode;
  auto file = runner::GgufFile::from_bytes(std::vector<uint8_t>(data, data + size), "fuzz");
  if (!file.ok()) return 0;
  fuzz::read_values(*file);
  fuzz::use_tokenizer(*file);
  fuzz::run_model(std::move(file).value());
  return 0;
}
