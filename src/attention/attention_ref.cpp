// Attention, the obvious loops. Every score is computed when it is needed, so there is nothing to keep.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/attention.h"
#include "base/types.h"

namespace obn::attention::ref {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

double added_at(const Added& x, size_t i, size_t j) {
  const size_t at = i * x.row + j * x.column;
  switch (x.type) {
    case BNNSDataTypeBoolean: return static_cast<const uint8_t*>(x.data)[at] ? kNothing : 0.0;
    case BNNSDataTypeFloat16: return static_cast<double>(float_of_float16(static_cast<const uint16_t*>(x.data)[at]));
    case BNNSDataTypeBFloat16: return static_cast<double>(float_of_bfloat16(static_cast<const uint16_t*>(x.data)[at]));
    default: return static_cast<double>(static_cast<const float*>(x.data)[at]);
  }
}

const float* key(const Head& h, size_t j) { return j < h.s ? h.k + j * h.k_row : h.extra_k + (j - h.s) * h.key_width; }
const float* value(const Head& h, size_t j) {
  return j < h.s ? h.v + j * h.v_row : h.extra_v + (j - h.s) * h.value_width;
}

double dot(const float* x, const float* y, size_t n) {
  double sum = 0.0;
  for (size_t c = 0; c < n; ++c) sum += static_cast<double>(x[c]) * static_cast<double>(y[c]);
  return sum;
}

double score(const Head& h, size_t i, size_t j) {
  double r = dot(h.q + i * h.q_row, key(h, j), h.key_width) * static_cast<double>(h.scale);
  if (j >= h.s) return r;
  if (h.added.data) r += added_at(h.added, i, j);
  if (h.hidden && h.hidden[j * h.hidden_step]) r = kNothing;
  if (h.causal && j > i) r = kNothing;
  return r;
}

// 0 where the value is dropped.
double kept(const Head& h, size_t i, size_t j) {
  if (!h.dropout.get) return 1.0;
  uint32_t number;
  h.dropout.get(h.dropout.stream, h.dropout.start + i * h.dropout.row + j, &number, 1);
  return number < h.dropout.threshold ? 0.0 : static_cast<double>(h.dropout.factor);
}

void add(float* row, double factor, const float* x, size_t n) {
  for (size_t c = 0; c < n; ++c)
    row[c] = static_cast<float>(static_cast<double>(row[c]) + factor * static_cast<double>(x[c]));
}

}  // namespace

void forward(const Head& h, size_t first, size_t rows, float* a, size_t a_row, float* top, float* inverse) {
  const size_t columns = h.s + h.extra;
  for (size_t i = first; i < first + rows; ++i) {
    double largest = kNothing, sum = 0.0;
    for (size_t j = 0; j < columns; ++j) largest = std::max(largest, score(h, i, j));
    for (size_t j = 0; j < columns; ++j) sum += std::exp(score(h, i, j) - largest);
    top[i] = static_cast<float>(largest);
    inverse[i] = static_cast<float>(1.0 / sum);
    for (size_t c = 0; c < h.value_width; ++c) {
      double value_sum = 0.0;
      for (size_t j = 0; j < columns; ++j)
        value_sum += std::exp(score(h, i, j) - largest) / sum * kept(h, i, j) * static_cast<double>(value(h, j)[c]);
      a[i * a_row + c] = static_cast<float>(value_sum);
    }
  }
}

void backward(const Head& h, const HeadGradients& g) {
  const size_t columns = h.s + h.extra;
  for (size_t i = 0; i < h.t; ++i) std::fill_n(g.dq + i * g.dq_row, h.key_width, 0.0f);
  for (size_t j = 0; j < columns; ++j) {
    float* dk = j < h.s ? g.dk + j * g.dk_row : g.extra_dk + (j - h.s) * h.key_width;
    float* dv = j < h.s ? g.dv + j * g.dv_row : g.extra_dv + (j - h.s) * h.value_width;
    std::fill_n(dk, h.key_width, 0.0f);
    std::fill_n(dv, h.value_width, 0.0f);
    for (size_t i = 0; i < h.t; ++i) {
      const float* da = g.da + i * g.da_row;
      const double p = std::exp(score(h, i, j) - static_cast<double>(g.top[i])) * static_cast<double>(g.inverse[i]);
      const double stays = kept(h, i, j);
      // a = Σ p·stays·v;  p = softmax of the scores
      const double dr = p * (dot(da, value(h, j), h.value_width) * stays - static_cast<double>(g.dots[i]));
      add(dv, p * stays, da, h.value_width);
      add(dk, dr * static_cast<double>(h.scale), h.q + i * h.q_row, h.key_width);
      add(g.dq + i * g.dq_row, dr * static_cast<double>(h.scale), key(h, j), h.key_width);
    }
  }
}

}  // namespace obn::attention::ref
