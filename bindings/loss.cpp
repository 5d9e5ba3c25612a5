// Calls of openbnns/loss.py.
#include "array.h"

#include <cstddef>

namespace obn::door {
namespace {

enum { kInput, kOutput, kOperands };  // labels are like the input
enum { kIsReduced = 1 };              // flags

// rows, columns, anchors, values of one, rescore, five scales, two overlaps, delta, (anchors, 2) float32. The buffer
// stays with the caller until the native filter has copied it. False with an exception.
bool parse_yolo(PyObject* tuple, BNNSLayerParametersLossYolo* layer, Py_buffer* anchors) {
  Py_ssize_t rows, columns, count, box;
  int rescore;
  if (!PyArg_ParseTuple(tuple, "nnnnpffffffffy*:yolo", &rows, &columns, &count, &box, &rescore, &layer->scale_xy,
                        &layer->scale_wh, &layer->scale_object, &layer->scale_no_object, &layer->scale_classification,
                        &layer->object_minimum_iou, &layer->no_object_maximum_iou, &layer->huber_delta, anchors))
    return false;
  layer->number_of_grid_rows = static_cast<size_t>(rows);
  layer->number_of_grid_columns = static_cast<size_t>(columns);
  layer->number_of_anchor_boxes = static_cast<size_t>(count);
  layer->anchor_box_size = static_cast<size_t>(box);
  layer->rescore = rescore;
  layer->anchors_data = static_cast<float*>(anchors->buf);
  return true;
}

// name, input, output, function, reduction, its one parameter, tuple of YOLO or None, threads
PyObject* loss_create(PyObject* module, PyObject* arguments) {
  PyObject *name, *operands[kOperands], *yolo;
  unsigned function, reduction;
  float parameter;
  Py_ssize_t threads;
  if (!PyArg_ParseTuple(arguments, "UOOIIfOn:loss_create", &name, &operands[kInput], &operands[kOutput], &function,
                        &reduction, &parameter, &yolo, &threads))
    return nullptr;
  Call call(module, name);
  NewFilter filter(call, Family::loss);
  if (!filter.parse_operands(operands, kOperands)) return nullptr;
  BNNSFilterParameters options = {};
  options.n_threads = static_cast<size_t>(threads);
  if (reduction != BNNSLossReductionNone) filter->flags |= kIsReduced;

  // The blocks of all functions but YOLO have one parameter at most, at the same place.
  const auto fill = [&](auto& layer) {
    layer.function = static_cast<BNNSLossFunction>(function);
    layer.reduction = static_cast<BNNSLossReductionFunction>(reduction);
    layer.i_desc = filter->operands[kInput].descriptor;
    layer.o_desc = filter->operands[kOutput].descriptor;
  };
  if (yolo == Py_None) {
    BNNSLayerParametersLossHuber layer = {};
    fill(layer);
    layer.huber_delta = parameter;
    return filter.open(BNNSFilterCreateLayerLoss(&layer, &options));
  }
  BNNSLayerParametersLossYolo layer = {};
  Py_buffer anchors = {};
  if (!parse_yolo(yolo, &layer, &anchors)) return nullptr;
  fill(layer);
  PyObject* made = filter.open(BNNSFilterCreateLayerLoss(&layer, &options));
  PyBuffer_Release(&anchors);
  return made;
}

// Labels like the input, or class numbers of the given type; and weights. Shared by both calls.
struct Truth {
  Array labels;
  Buffer classes, weights;
  BNNSDataType class_type = BNNSDataTypeInt32;
  bool are_classes = false;
  size_t weights_size = 0;

  // False with an exception.
  bool take(Call& call, PyObject* labels_object, PyObject* type, PyObject* weights_object) {
    const long code = PyLong_AsLong(type);
    if (code == -1 && PyErr_Occurred()) return false;
    are_classes = code != 0;
    if (!are_classes) {
      if (!labels.take(call, labels_object, call.operand(kInput), "labels", Use::read)) return false;
    } else {
      class_type = static_cast<BNNSDataType>(code);
      if (!classes.take(labels_object, PyBUF_STRIDED_RO)) return false;
      if (is_recording() && !keep_recorded(labels_object)) return false;
    }
    if (weights_object == Py_None) return true;
    if (is_recording()) return refuse_recording();  // they are the caller's, and others in every step
    if (!weights.take(weights_object, PyBUF_SIMPLE)) return false;
    weights_size = weights.size() / sizeof(float);
    return true;
  }
  Place place() const { return are_classes ? Place{classes.view.buf, class_stride()} : labels.place(); }
  size_t class_stride() const {
    return static_cast<size_t>(classes.view.shape[0] > 1 ? classes.view.strides[0] / classes.view.itemsize : 1);
  }
};

// filter, x, labels, type of class numbers or 0, weights or None, out or None, input_gradient, accumulate
PyObject* loss_apply(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("loss_apply", count, 8)) return nullptr;
  Call call(module, arguments[0], Family::loss);
  if (!call.ok()) return nullptr;
  const long accumulate = PyLong_AsLong(arguments[7]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  const Batched batched = call.flags() & kIsReduced ? Batched::no : Batched::yes;
  Array x, y;
  Truth truth;
  Target dx;
  if (!x.take(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !truth.take(call, arguments[2], arguments[3], arguments[4]))
    return nullptr;
  if (arguments[5] == Py_None ? !y.make(call, call.operand(kOutput), batched)
                              : !y.take(call, arguments[5], call.operand(kOutput), "out", Use::write,
                                        Strides::as_operand, batched))
    return nullptr;
  // the C call takes no stride of losses
  if (batched == Batched::yes && call.batch > 1 && y.batch_stride() != static_cast<size_t>(call.operand(kOutput).items))
    return PyErr_Format(call.state()->layer_apply_error,
                        "[%U] out: expected losses side by side; got every %zuth value", call.name(), y.batch_stride());
  if (!dx.take(call, arguments[6], call.operand(kInput), "input_gradient", accumulate & 1, true)) return nullptr;
  auto apply = [handle = call.handle(), batch = call.samples(), x = x.place(), y = y.data(), dx = dx.described(),
                labels = truth.place(), are_classes = truth.are_classes, type = truth.class_type,
                weights = truth.weights.view.buf, weights_size = truth.weights_size]() mutable {
    if (are_classes)
      return obn_loss_apply_classes(handle, batch, x.data, x.stride, labels.data, type, labels.stride, weights,
                                    weights_size, y, dx.get(), dx.stride);
    return BNNSLossFilterApplyBatch(handle, batch, x.data, x.stride, labels.data, labels.stride, weights, weights_size,
                                    y, dx.get(), dx.stride);
  };
  if (!call.perform(call.operand(kInput), apply)) return nullptr;
  if (!dx.descriptor()) return y.result();
  return Py_BuildValue("NN", y.result(), dx.result());
}

// filter, x, labels, type of class numbers or 0, weights or None, grad_output, input_gradient, accumulate
PyObject* loss_backward(PyObject* module, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_count("loss_backward", count, 8)) return nullptr;
  Call call(module, arguments[0], Family::loss);
  if (!call.ok()) return nullptr;
  const long accumulate = PyLong_AsLong(arguments[7]);
  if (accumulate == -1 && PyErr_Occurred()) return nullptr;
  Array x, dy;
  Truth truth;
  Target dx;
  if (!x.take(call, arguments[1], call.operand(kInput), "x", Use::read) ||
      !truth.take(call, arguments[2], arguments[3], arguments[4]) ||
      !dy.take(call, arguments[5], call.operand(kOutput), "grad_output", Use::read, Strides::any,
               call.flags() & kIsReduced ? Batched::no : Batched::yes) ||
      !dx.take(call, arguments[6], call.operand(kInput), "input_gradient", accumulate & 1, true))
    return nullptr;
  if (!dx.descriptor()) Py_RETURN_NONE;
  const size_t batch = static_cast<size_t>(call.batch);
  const BNNSNDArrayDescriptor dy_descriptor = dy.describe(call.operand(kOutput));
  if (!call.run(call.operand(kInput), [&] {
        if (truth.are_classes)
          return obn_loss_apply_backward_classes(
              call.handle(), batch, x.data(), x.batch_stride(), dx.descriptor(), dx.batch_stride(),
              truth.classes.view.buf, truth.class_type, truth.class_stride(), truth.weights.view.buf,
              truth.weights_size, &dy_descriptor, dy.batch_stride());
        return BNNSLossFilterApplyBackwardBatch(call.handle(), batch, x.data(), x.batch_stride(), dx.descriptor(),
                                                dx.batch_stride(), truth.labels.data(), truth.labels.batch_stride(),
                                                truth.weights.view.buf, truth.weights_size, &dy_descriptor,
                                                dy.batch_stride());
      }))
    return nullptr;
  return dx.result();
}

}  // namespace

PyMethodDef loss_methods[] = {
    {"loss_create", loss_create, METH_VARARGS, nullptr},
    {"loss_apply", as_method(loss_apply), METH_FASTCALL, nullptr},
    {"loss_backward", as_method(loss_backward), METH_FASTCALL, nullptr},
    {},
};

}  // namespace obn::door
