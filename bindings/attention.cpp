// Calls of openbnns/attention.py.
#include <cstddef>

#include "array.h"

namespace obn::door {
namespace {

// Query, key, value and output, each with three operands; then the attention biases and the key mask.
constexpr int kQuery = 0, kKey = 1, kValue = 2, kOutput = 3, kProjections = 4;
constexpr int kInput = 0, kWeights = 1, kBias = 2, kParts = 3;
constexpr int kKeyBias = kProjections * kParts, kValueBias = kKeyBias + 1, kMask = kKeyBias + 2;
constexpr int kOperands = kKeyBias + 3;
constexpr unsigned kHasBias = 1, kHasAttentionBias = 1 << kProjections;  // flags: kHasBias << projection

static_assert(kOperands <= kMaxOperands);

constexpr const char* kNames[kProjections][kParts] = {{"query", "query.weights", "query.bias"},
                                                      {"key", "key.weights", "key.bias"},
                                                      {"value", "value.weights", "value.bias"},
                                                      {"output", "output.weights", "output.bias"}};

// The gradients in the order of AttentionGradients, each with the operand it belongs to.
struct Gradient {
  int projection, part;
  const char* name;

  int operand() const { return projection * kParts + part; }
  bool is_attention_bias() const { return projection == kProjections; }
};
constexpr Gradient kGradients[] = {{kQuery, kInput, "query_gradient"},
                                   {kKey, kInput, "key_gradient"},
                                   {kValue, kInput, "value_gradient"},
                                   {kQuery, kWeights, "query_weights_gradient"},
                                   {kQuery, kBias, "query_bias_gradient"},
                                   {kKey, kWeights, "key_weights_gradient"},
                                   {kKey, kBias, "key_bias_gradient"},
                                   {kValue, kWeights, "value_weights_gradient"},
                                   {kValue, kBias, "value_bias_gradient"},
                                   {kOutput, kWeights, "output_weights_gradient"},
                                   {kOutput, kBias, "output_bias_gradient"},
                                   {kProjections, 0, "key_attention_bias_gradient"},
                                   {kProjections, 1, "value_attention_bias_gradient"}};
constexpr int kGradientCount = sizeof kGradients / sizeof kGradients[0];

// What a filter is made of, held until the native one exists.
struct Parameters {
  BNNSLayerParametersMultiheadAttention layer = {};
  Array weights[kProjections], biases[kProjections], key_bias, value_bias;
};

// operands of input, weights and bias, then weights, and bias or None
bool parse_projection(Call& call, FilterObject* filter, PyObject* tuple, int which, bool copy, Parameters* to) {
  PyObject *operands[kParts], *weights, *bias;
  if (!PyArg_ParseTuple(tuple, "OOOOO:projection", &operands[0], &operands[1], &operands[2], &weights, &bias))
    return false;
  Operand* own = &filter->operands[which * kParts];
  for (int i = 0; i < kParts; ++i)
    if (!own[i].parse(operands[i])) return false;
  BNNSLayerParametersMultiheadAttention& layer = to->layer;
  BNNSMHAProjectionParameters* all[] = {&layer.query, &layer.key, &layer.value, &layer.output};
  BNNSMHAProjectionParameters& p = *all[which];
  p.target_desc = own[kInput].descriptor;
  if (!take_parameter(call, filter, weights, own[kWeights], kNames[which][kWeights], copy, to->weights[which],
                      &p.weights))
    return false;
  if (bias == Py_None) return true;
  filter->flags |= kHasBias << which;
  return take_parameter(call, filter, bias, own[kBias], kNames[which][kBias], copy, to->biases[which], &p.bias);
}

// name, the four projections, operands of key_bias, value_bias and mask, key_bias and value_bias or None, add_zero,
// dropout, seed, causal, threads, copy_parameters
PyObject* attention_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *projections[kProjections], *operands[3], *key_bias, *value_bias;
  int add_zero, causal, copy;
  float dropout;
  unsigned seed;
  Py_ssize_t threads;
  if (!PyArg_ParseTuple(arguments, "UOOOOOOOOOpfIpnp:attention_create", &name, &projections[0], &projections[1],
                        &projections[2], &projections[3], &operands[0], &operands[1], &operands[2], &key_bias,
                        &value_bias, &add_zero, &dropout, &seed, &causal, &threads, &copy))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::attention);
  if (!filter.get()) return nullptr;
  Parameters p;
  for (int i = 0; i < kProjections; ++i)
    if (!parse_projection(call, filter.get(), projections[i], i, copy, &p)) return nullptr;
  for (int i = 0; i < 3; ++i)
    if (!filter->operands[kKeyBias + i].parse(operands[i])) return nullptr;
  if (key_bias != Py_None) {
    filter->flags |= kHasAttentionBias;
    if (!take_parameter(call, filter.get(), key_bias, filter->operands[kKeyBias], "key_attention_bias", copy,
                        p.key_bias, &p.layer.key_attn_bias) ||
        !take_parameter(call, filter.get(), value_bias, filter->operands[kValueBias], "value_attention_bias", copy,
                        p.value_bias, &p.layer.value_attn_bias))
      return nullptr;
  }
  p.layer.add_zero_attn = add_zero;
  p.layer.dropout = dropout;
  p.layer.seed = seed;
  BNNSFilterParameters options = {};
  if (!copy) options.flags = BNNSFlagsUseClientPtr;
  options.n_threads = static_cast<size_t>(threads);
  const BNNSFilter handle = BNNSFilterCreateLayerMultiheadAttention(&p.layer, &options);
  if (handle && causal) obn_attention_set_causal(handle, 1);
  return filter.open(handle);
}

// key_mask or None, and attention_bias as (operand, array) or None.
struct Masks {
  Array hidden, added;
  Operand added_operand = {};
  BNNSNDArrayDescriptor hidden_array = {}, added_array = {};

  Masks() = default;
  Masks(const Masks&) = delete;
  Masks& operator=(const Masks&) = delete;
  ~Masks() { added_operand.release(); }

  bool take(Call& call, PyObject* mask, PyObject* pair) {
    if (mask != Py_None) {
      if (!hidden.take(call, mask, call.operand(kMask), "key_mask", Use::read)) return false;
      hidden_array = hidden.describe(call.operand(kMask));
    }
    if (pair == Py_None) return true;
    PyObject *operand, *array;
    if (!PyArg_ParseTuple(pair, "OO:attention_bias", &operand, &array) || !added_operand.parse(operand) ||
        !added.take(call, array, added_operand, "attention_bias", Use::read, Strides::any, Batched::no))
      return false;
    added_array = added.describe_first_major(added_operand);
    return true;
  }
  const BNNSNDArrayDescriptor* hidden_descriptor() const { return hidden.data() ? &hidden_array : nullptr; }
  const BNNSNDArrayDescriptor* added_descriptor() const { return added.data() ? &added_array : nullptr; }
};

// A cache's memory, or None. False with an exception.
bool take_cache(Buffer& cache, PyObject* object) { return object == Py_None || cache.take(object, PyBUF_WRITABLE); }

// Values that a call touches at least, to decide whether it is worth releasing the GIL.
size_t work_of(const Call& call) {
  const auto items = [&](int which) { return static_cast<size_t>(call.operand(which * kParts).items); };
  return static_cast<size_t>(call.batch) * (items(kQuery) + items(kKey)) * 8;
}

const Operand& operand_of(const Call& call, int which, int part) { return call.operand(which * kParts + part); }

// filter, query, key, value, key_mask or None, attention_bias pair or None, out or None, cache or None
PyObject* attention_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("attention_apply", count, 8)) return nullptr;
  Call call(module, arguments[0], Family::attention);
  if (!call.ok()) return nullptr;
  Array x[3], y;
  Masks masks;
  Buffer cache;
  for (int i = 0; i < 3; ++i)
    if (!x[i].take(call, arguments[1 + i], operand_of(call, i, kInput), kNames[i][kInput], Use::read)) return nullptr;
  if (!masks.take(call, arguments[4], arguments[5]) ||
      !y.take_or_make(call, arguments[6], operand_of(call, kOutput, kInput), "out") || !take_cache(cache, arguments[7]))
    return nullptr;
  size_t cache_size = cache.size();
  if (!call.run(work_of(call), [&] {
        return BNNSApplyMultiheadAttention(
            call.handle(), static_cast<size_t>(call.batch), x[0].data(), x[0].batch_stride(), x[1].data(),
            x[1].batch_stride(), masks.hidden_descriptor(), masks.hidden.batch_stride(), x[2].data(),
            x[2].batch_stride(), y.data(), y.batch_stride(), masks.added_descriptor(),
            cache.view.buf ? &cache_size : nullptr, cache.view.buf, nullptr, nullptr);
      }))
    return nullptr;
  return y.result();
}

// filter, query, key, value (each or None), grad_output, key_mask or None, attention_bias pair or None, cache or None,
// tuple of targets for kGradients, accumulate (a bit for each)
PyObject* attention_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("attention_backward", count, 10)) return nullptr;
  Call call(module, arguments[0], Family::attention);
  if (!call.ok()) return nullptr;
  const unsigned flags = call.flags();
  const long accumulate = PyLong_AsLong(arguments[9]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  Array x[3], dy;
  Masks masks;
  Buffer cache;
  if (!dy.take(call, arguments[4], operand_of(call, kOutput, kInput), "grad_output", Use::read, Strides::any))
    return nullptr;
  for (int i = 0; i < 3; ++i)
    if (!x[i].take_optional(call, arguments[1 + i], operand_of(call, i, kInput), kNames[i][kInput], Use::read))
      return nullptr;
  if (!masks.take(call, arguments[5], arguments[6]) || !take_cache(cache, arguments[7])) return nullptr;

  Target targets[kKeyBias + 2];  // by operand
  BNNSMHAProjectionParameters deltas[kProjections] = {};
  for (int k = 0; k < kGradientCount; ++k) {
    const Gradient& gradient = kGradients[k];
    const int i = gradient.projection, part = gradient.part;
    const bool is_input = !gradient.is_attention_bias() && part == kInput;
    bool exists = flags & kHasAttentionBias;
    if (!gradient.is_attention_bias()) exists = part != kBias || flags & (kHasBias << i);
    Target& target = targets[gradient.operand()];
    PyObject* object = PyTuple_GetItem(arguments[8], k);
    if (!object || !target.take(call, object, call.operand(gradient.operand()), gradient.name, accumulate >> k & 1,
                                exists, is_input ? Batched::yes : Batched::no))
      return nullptr;
    if (gradient.is_attention_bias() || !target.descriptor()) continue;
    BNNSNDArrayDescriptor* to[] = {&deltas[i].target_desc, &deltas[i].weights, &deltas[i].bias};
    *to[part] = *target.descriptor();
    if (is_input) deltas[i].target_desc.stride[2] = target.batch_stride();
  }
  deltas[kOutput].target_desc = dy.describe(operand_of(call, kOutput, kInput));
  deltas[kOutput].target_desc.stride[2] = dy.batch_stride();
  if (!call.run(work_of(call), [&] {
        return BNNSApplyMultiheadAttentionBackward(
            call.handle(), static_cast<size_t>(call.batch), x[0].data(), x[0].batch_stride(), &deltas[kQuery],
            x[1].data(), x[1].batch_stride(), masks.hidden_descriptor(), masks.hidden.batch_stride(), &deltas[kKey],
            x[2].data(), x[2].batch_stride(), &deltas[kValue], masks.added_descriptor(), targets[kKeyBias].descriptor(),
            targets[kValueBias].descriptor(), nullptr, 0, &deltas[kOutput], cache.size(), cache.view.buf, nullptr,
            nullptr);
      }))
    return nullptr;
  PyObject* results = PyTuple_New(kGradientCount);
  for (int k = 0; results && k < kGradientCount; ++k)
    PyTuple_SetItem(results, k, targets[kGradients[k].operand()].result());
  return results;
}

// filter, batch
PyObject* attention_cache_bytes(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("attention_cache_bytes", count, 2)) return nullptr;
  Call call(module, arguments[0], Family::attention);
  if (!call.ok()) return nullptr;
  const size_t batch = PyLong_AsSize_t(arguments[1]);
  if (batch == static_cast<size_t>(-1) && PyErr_Occurred()) return nullptr;
  size_t bytes = 0;
  call.batch = 0;
  if (!call.run(0, [&] {
        return BNNSApplyMultiheadAttention(call.handle(), batch, nullptr, 0, nullptr, 0, nullptr, 0, nullptr, 0,
                                           nullptr, 0, nullptr, &bytes, nullptr, nullptr, nullptr);
      }))
    return nullptr;
  return PyLong_FromSize_t(bytes);
}

}  // namespace

PyMethodDef attention_methods[] = {
    {"attention_create", attention_create, METH_VARARGS, nullptr},
    {"attention_apply", as_method(attention_apply), METH_FASTCALL, nullptr},
    {"attention_backward", as_method(attention_backward), METH_FASTCALL, nullptr},
    {"attention_cache_bytes", as_method(attention_cache_bytes), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
