"""Fully connected layers in float64. x (n, i), weights (o, i), y (n, o)."""

import numpy as np


def fully_connected(x, w):
    """y(n, o) = sum of w(o, i) x(n, i)."""
    return x @ w.T


def input_gradient(dz, w):
    return dz @ w


def weight_gradient(x, dz):
    return dz.T @ x


def dense(shape, rows, columns, values):
    """The matrix of a coordinate list; entries that occur twice are added."""
    matrix = np.zeros(shape)
    np.add.at(matrix, (rows, columns), values)
    return matrix
