#include "synthetic_text.h"

#include <array>
#include <cctype>
#include <random>
#include <string_view>
#include <vector>

namespace longdecode::tool {
namespace {

// The most frequent first.
constexpr std::array<std::string_view, 100> kWords = {
    "the",     "of",      "and",     "to",      "a",       "in",      "that",    "it",
    "was",     "he",      "for",     "with",    "as",      "his",     "on",      "be",
    "at",      "by",      "had",     "not",     "but",     "from",    "or",      "have",
    "which",   "one",     "were",    "all",     "their",   "there",   "when",    "who",
    "will",    "more",    "into",    "some",    "time",    "could",   "other",   "then",
    "than",    "only",    "its",     "over",    "also",    "people",  "after",   "first",
    "made",    "house",   "years",   "through", "water",   "before",  "light",   "between",
    "long",    "under",   "found",   "world",   "place",   "night",   "river",   "while",
    "number",  "small",   "great",   "city",    "garden",  "winter",  "letter",  "answer",
    "station", "market",  "window",  "mother",  "captain", "music",   "village", "machine",
    "paper",   "forest",  "island",  "silver",  "travel",  "history", "morning", "quiet",
    "bridge",  "harbour", "measure", "kitchen", "engine",  "orchard", "lantern", "compass",
    "thunder", "copper",  "archive", "meadow"};

}  // namespace

std::string synthetic_text(int64_t num_words) {
  std::vector<double> cumulative;  // of 1 / rank
  double sum = 0.0;
  for (size_t i = 0; i < kWords.size(); ++i) {
    sum += 1.0 / static_cast<double>(i + 1);
    cumulative.push_back(sum);
  }
  std::mt19937_64 random(1);  // its numbers are fixed by the standard; distributions' are not
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::string text;
  int64_t left_in_sentence = 0;
  for (int64_t i = 0; i < num_words; ++i) {
    const double target = uniform() * sum;
    size_t word = 0;
    while (word + 1 < kWords.size() && cumulative[word] < target) ++word;
    const bool first = left_in_sentence == 0;
    if (first) left_in_sentence = 5 + static_cast<int64_t>(random() % 16);
    if (!text.empty()) text += ' ';
    text += kWords[word];
    if (first) {
      char& initial = text[text.size() - kWords[word].size()];
      initial = static_cast<char>(std::toupper(static_cast<unsigned char>(initial)));
    }
    if (--left_in_sentence == 0) text += random() % 6 == 0 ? ".\n" : ".";
  }
  return text;
}

}  // namespace longdecode::tool
