// Products of batches of matrices, and attention, which is made of them: part of onednn.cpp.
#pragma once

memory seen_as(Pass& pass, const memory& m, const memory::desc& desc) {
  pass.kept.push_back(m);
  return memory(desc, cpu(), m.get_data_handle());
}

struct Factor {
  const memory& array;
  memory::desc desc;
};

// result = a · b (+ bias), with whatever else the attributes say; `others`: their arrays.
void add_product(Pass& pass, const Factor& a, const Factor& b, const memory* bias, const Factor& result,
                 dnnl::primitive_attr attributes = own_scratch(), Arguments others = {}) {
  using Product = dnnl::matmul::primitive_desc;
  const Product product = bias != nullptr
                              ? Product(cpu(), a.desc, b.desc, bias->get_desc(), result.desc, attributes)
                              : Product(cpu(), a.desc, b.desc, result.desc, attributes);
  others[DNNL_ARG_SRC] = seen_as(pass, a.array, a.desc);
  others[DNNL_ARG_WEIGHTS] = seen_as(pass, b.array, b.desc);
  if (bias != nullptr) others[DNNL_ARG_BIAS] = *bias;
  others[DNNL_ARG_DST] = seen_as(pass, result.array, result.desc);
  others[DNNL_ARG_SCRATCHPAD] = memory(product.scratchpad_desc(), cpu());
  pass.add(dnnl::matmul(product), std::move(others));
}

// y (batch, m, n) = a (batch, m, k) · b (batch, k, n); transposed operands lie as (batch, k, m) and (batch, n, k).
// given: a, b, dy; found: y, da, db
Chain* make_batched_matmul(bool transpose_a, bool transpose_b, int64_t batch, int64_t m, int64_t n, int64_t k) {
  const auto type = memory::data_type::f32;
  const auto tag = [](bool transposed) { return transposed ? Tag::acb : Tag::abc; };
  // The same memory seen as a matrix and as its transpose.
  const memory::desc a({batch, m, k}, type, tag(transpose_a)), a_turned({batch, k, m}, type, tag(!transpose_a));
  const memory::desc b({batch, k, n}, type, tag(transpose_b)), b_turned({batch, n, k}, type, tag(!transpose_b));
  const memory::desc y({batch, m, n}, type, Tag::abc);
  auto* c = new Chain{};
  const memory given_a = c->give(a, a), given_b = c->give(b, b), dy = c->give(y, y);
  const auto add = [&](Pass& pass, const Factor& left, const Factor& right, const memory::desc& result_desc) {
    const memory result(result_desc, cpu());
    add_product(pass, left, right, nullptr, {result, result_desc});
    c->find(result, result_desc);
  };
  add(c->forward, {given_a, a}, {given_b, b}, y);
  // Results lie by rows: a gradient that is wanted turned is the product of the turned factors.
  const memory::desc y_turned({batch, n, m}, type, Tag::acb), a_rows({batch, k, m}, type, Tag::abc),
      b_rows({batch, n, k}, type, Tag::abc);
  if (transpose_a) {
    add(c->backward, {given_b, b}, {dy, y_turned}, a_rows);
  } else {
    add(c->backward, {dy, y}, {given_b, b_turned}, a);
  }
  if (transpose_b) {
    add(c->backward, {dy, y_turned}, {given_a, a}, b_rows);
  } else {
    add(c->backward, {given_a, a_turned}, {dy, y}, b);
  }
  return c;
}

// ---- attention: oneDNN has no primitive for all of it ----

// Products see a head as a matrix with strides inside the rows of all heads, so nothing is copied; scale and mask ride
// along with the product of the scores; the probabilities are kept for backward.

// n samples, t rows of queries, s rows of keys, heads of `width` columns; all rows are heads · width wide.
struct AttentionSizes {
  int64_t n, t, s, heads, width;

  int64_t model() const { return heads * width; }
  memory::desc rows(int64_t count) const { return {{n * count, model()}, memory::data_type::f32, Tag::ab}; }
  memory::desc rows_turned(int64_t count) const { return {{model(), n * count}, memory::data_type::f32, Tag::ba}; }
  // Heads of such rows, as matrices (count, width) or their transposes.
  memory::desc of_heads(int64_t count) const {
    return {{n, heads, count, width}, memory::data_type::f32, {count * model(), width, model(), 1}};
  }
  memory::desc of_heads_turned(int64_t count) const {
    return {{n, heads, width, count}, memory::data_type::f32, {count * model(), width, 1, model()}};
  }
  memory::desc scores() const { return {{n, heads, t, s}, memory::data_type::f32, Tag::abcd}; }
  memory::desc scores_turned() const { return {{n, heads, s, t}, memory::data_type::f32, Tag::abdc}; }
};

dnnl::primitive_attr scaled_by(float factor, const memory* added = nullptr) {
  dnnl::primitive_attr attributes = own_scratch();
  dnnl::post_ops last;
  last.append_eltwise(algorithm::eltwise_linear, factor, 0.0F);
  if (added != nullptr) last.append_binary(algorithm::binary_add, added->get_desc());
  attributes.set_post_ops(last);
  return attributes;
}

// One of the four projections: weights (outputs, inputs) by rows, a bias, their gradients.
struct Projected {
  memory weights, bias, grad_weights, grad_bias;
  memory::desc rows, turned;  // both of weights

  Projected(Chain& c, const AttentionSizes& sizes) {
    const int64_t model = sizes.model();
    rows = {{model, model}, memory::data_type::f32, Tag::ab};
    turned = {{model, model}, memory::data_type::f32, Tag::ba};
    const memory::desc row({1, model}, memory::data_type::f32, Tag::ab);
    weights = c.give(rows, rows);
    bias = c.give(row, row);
    grad_weights = memory(rows, cpu());
    grad_bias = memory(row, cpu());
  }

  void forward(Chain& c, const AttentionSizes& sizes, int64_t count, const memory& x, const memory& y) const {
    add_product(c.forward, {x, sizes.rows(count)}, {weights, turned}, &bias, {y, sizes.rows(count)});
  }
  void backward(Chain& c, const AttentionSizes& sizes, int64_t count, const memory& x, const memory& dy,
                const memory& dx) const {
    const memory::desc all = sizes.rows(count);
    add_product(c.backward, {dy, all}, {weights, rows}, nullptr, {dx, all});
    add_product(c.backward, {dy, sizes.rows_turned(count)}, {x, all}, nullptr, {grad_weights, rows});
    // Its own sum over rows runs value by value.
    const memory ones({{1, sizes.n * count}, memory::data_type::f32, Tag::ab}, cpu());
    std::fill_n(static_cast<float*>(ones.get_data_handle()), sizes.n * count, 1.0F);
    add_product(c.backward, {ones, ones.get_desc()}, {dy, all}, nullptr, {grad_bias, grad_bias.get_desc()});
  }
};

// given: q, k, v, weights and bias of query, key, value, output in turn, dy, and a mask (t, s) where causal; found: y,
// gradients of q, k, v, of the four weights, of the four biases.
Chain* make_attention(const AttentionSizes& sizes, bool causal) {
  const auto [n, t, s, heads, width] = sizes;
  auto* c = new Chain{};
  const memory q = c->give(sizes.rows(t), sizes.rows(t)), k = c->give(sizes.rows(s), sizes.rows(s)),
               v = c->give(sizes.rows(s), sizes.rows(s));
  const Projected query(*c, sizes), key(*c, sizes), value(*c, sizes), output(*c, sizes);
  const memory dy = c->give(sizes.rows(t), sizes.rows(t));
  memory mask;
  if (causal) {
    const memory::desc desc({1, 1, t, s}, memory::data_type::f32, Tag::abcd);
    mask = c->give(desc, desc);
  }
  const auto rows = [&](int64_t count) { return memory(sizes.rows(count), cpu()); };
  const memory own_q = rows(t), own_k = rows(s), own_v = rows(s), a = rows(t), y = rows(t);
  const memory p(sizes.scores(), cpu()), dp(sizes.scores(), cpu()), dr(sizes.scores(), cpu());
  const float scale = 1.0F / std::sqrt(static_cast<float>(width));

  query.forward(*c, sizes, t, q, own_q);
  key.forward(*c, sizes, s, k, own_k);
  value.forward(*c, sizes, s, v, own_v);
  Arguments masked;
  if (causal) masked[DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1] = mask;
  add_product(c->forward, {own_q, sizes.of_heads(t)}, {own_k, sizes.of_heads_turned(s)}, nullptr, {p, sizes.scores()},
              scaled_by(scale, causal ? &mask : nullptr), std::move(masked));
  const auto kind = algorithm::softmax_accurate;
  const dnnl::softmax_forward::primitive_desc soft(cpu(), dnnl::prop_kind::forward_training, kind, sizes.scores(),
                                                   sizes.scores(), 3, own_scratch());
  c->forward.add(dnnl::softmax_forward(soft), {{DNNL_ARG_SRC, p}, {DNNL_ARG_DST, p},
                                               {DNNL_ARG_SCRATCHPAD, memory(soft.scratchpad_desc(), cpu())}});
  add_product(c->forward, {p, sizes.scores()}, {own_v, sizes.of_heads(s)}, nullptr, {a, sizes.of_heads(t)});
  output.forward(*c, sizes, t, a, y);

  const memory da = rows(t), own_dq = rows(t), own_dk = rows(s), own_dv = rows(s), dq = rows(t), dk = rows(s),
               dv = rows(s);
  output.backward(*c, sizes, t, a, dy, da);
  add_product(c->backward, {p, sizes.scores_turned()}, {da, sizes.of_heads(t)}, nullptr, {own_dv, sizes.of_heads(s)});
  add_product(c->backward, {da, sizes.of_heads(t)}, {own_v, sizes.of_heads_turned(s)}, nullptr, {dp, sizes.scores()});
  const dnnl::softmax_backward::primitive_desc slope(cpu(), kind, sizes.scores(), sizes.scores(), sizes.scores(), 3,
                                                     soft, own_scratch());
  c->backward.add(dnnl::softmax_backward(slope), {{DNNL_ARG_DST, p}, {DNNL_ARG_DIFF_DST, dp}, {DNNL_ARG_DIFF_SRC, dr},
                                                  {DNNL_ARG_SCRATCHPAD, memory(slope.scratchpad_desc(), cpu())}});
  add_product(c->backward, {dr, sizes.scores()}, {own_k, sizes.of_heads(s)}, nullptr, {own_dq, sizes.of_heads(t)},
              scaled_by(scale));
  add_product(c->backward, {dr, sizes.scores_turned()}, {own_q, sizes.of_heads(t)}, nullptr,
              {own_dk, sizes.of_heads(s)}, scaled_by(scale));
  query.backward(*c, sizes, t, q, own_dq, dq);
  key.backward(*c, sizes, s, k, own_dk, dk);
  value.backward(*c, sizes, s, v, own_dv, dv);

  for (const memory& found : {y, dq, dk, dv}) c->find(found, found.get_desc());
  for (const Projected* one : {&query, &key, &value, &output}) c->find(one->grad_weights, one->rows);
  for (const Projected* one : {&query, &key, &value, &output}) c->find(one->grad_bias, one->bias.get_desc());
  return c;
}
