#include "runner/tokenizer/utf8.h"

#include <algorithm>

namespace longdecode::runner {
namespace {

// Length that a lead byte announces and the range of its second byte, which is what rules out
// overlong forms, surrogates and values above U+10FFFF (table 3-7 of the Unicode standard).
struct Lead {
  size_t num_bytes = 0;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xbf;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

// How many bytes from pos on agree with the form that text[pos] announces, at most its length.
size_t agreeing_bytes(std::string_view text, size_t pos, const Lead& lead) {
  const size_t end = std::min(lead.num_bytes, text.size() - pos);
  for (size_t i = 1; i < end; ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[pos + i]);
    const uint8_t low = i == 1 ? lead.second_min : uint8_t{0x80};
    const uint8_t high = i == 1 ? lead.second_max : uint8_t{0xbf};
    if (byte < low || byte > high) return i;
  }
  return end;
}

}  // namespace

size_t utf8_sequence_bytes(std::string_view text, size_t pos) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[pos]));
  return agreeing_bytes(text, pos, lead) == lead.num_bytes ? lead.num_bytes : 0;
}

size_t utf8_valid_prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const size_t num_bytes = utf8_sequence_bytes(text, pos);
    if (num_bytes == 0) break;
    pos += num_bytes;
  }
  return pos;
}

size_t utf8_incomplete_suffix(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t pos = text.size() - back;
    const uint8_t byte = static_cast<uint8_t>(text[pos]);
    if ((byte & 0xc0) == 0x80) continue;  // a continuation byte: look further back for the lead
    const Lead lead = lead_of(byte);
    return lead.num_bytes > back && agreeing_bytes(text, pos, lead) == back ? back : 0;
  }
  return 0;
}

uint32_t utf8_next(std::string_view text, size_t& pos) {
  const uint8_t first = static_cast<uint8_t>(text[pos]);
  const size_t num_bytes = lead_of(first).num_bytes;
  uint32_t code_point = num_bytes <= 1 ? first : first & (0x7fu >> num_bytes);
  for (size_t i = 1; i < num_bytes; ++i) {
    code_point = (code_point << 6) | (static_cast<uint8_t>(text[pos + i]) & 0x3fu);
  }
  pos += num_bytes;
  return code_point;
}

void utf8_append(uint32_t code_point, std::string& text) {
  const auto push = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xc0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    push(0xe0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  } else {
    push(0xf0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3f));
    push(0x80 | ((code_point >> 6) & 0x3f));
    push(0x80 | (code_point & 0x3f));
  }
}

}  // namespace longdecode::runner
