package host

import "errors"

// ErrTooLong says that a datagram cannot be sent in one piece from this machine.
var ErrTooLong = errors.New("the datagram is longer than the interface takes in one piece")
