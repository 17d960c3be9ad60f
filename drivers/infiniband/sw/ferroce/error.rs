// SPDX-License-Identifier: GPL-2.0
//! From the protocol's errors to errno, in one place.

use kernel::{
    error::Error,
    prelude::*, //
};
use roce::qp::AttrError;

/// The errno for a refused change of QP attributes.
pub(crate) fn errno(_error: AttrError) -> Error {
    // Whatever is wrong with the attributes, it is the caller's argument.
    EINVAL
}
