#include "runner/tokenizer/byte_alphabet.h"

#include <array>

#include "runner/tokenizer/utf8.h"

namespace longdecode::runner {
namespace {

constexpr uint32_t kFirstStandIn = 0x100;
constexpr uint32_t kNumStandIns = 68;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Tables {
  std::array<uint16_t, 256> code_point = {};
  std::array<uint8_t, kFirstStandIn + kNumStandIns> byte = {};
};

constexpr Tables make_tables() {
  Tables tables;
  uint32_t next = kFirstStandIn;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t code_point = stands_for_itself(byte) ? byte : next++;
    tables.code_point[byte] = static_cast<uint16_t>(code_point);
    tables.byte[code_point] = static_cast<uint8_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = make_tables();

constexpr bool in_alphabet(uint32_t code_point) {
  return code_point < kTables.byte.size() &&
         (code_point >= kFirstStandIn || stands_for_itself(code_point));
}

}  // namespace

std::string byte_to_alphabet(uint8_t byte) {
  std::string text;
  utf8_append(kTables.code_point[byte], text);
  return text;
}

std::string alphabet_to_bytes(std::string_view token_text) {
  std::string bytes;
  size_t pos = 0;
  while (pos < token_text.size()) {
    const size_t num_bytes = utf8_sequence_bytes(token_text, pos);
    if (num_bytes == 0) {
      bytes.push_back(token_text[pos++]);
      continue;
    }
    const size_t start = pos;
    const uint32_t code_point = utf8_next(token_text, pos);
    if (in_alphabet(code_point)) {
      bytes.push_back(static_cast<char>(kTables.byte[code_point]));
    } else {
      bytes.append(token_text.substr(start, num_bytes));
    }
  }
  return bytes;
}

}  // namespace longdecode::runner
