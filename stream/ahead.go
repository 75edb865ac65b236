package stream

import (
	"encoding/binary"
	"net"
	"os"
)

const (
	// recordHeader is the length of a TLS record's header: its last two bytes are the length of the rest (RFC 8446
	// section 5.1).
	recordHeader = 5
	// idleAhead is the room in bytes of a connection that has little to read.
	idleAhead = 1 << 10
)

// ahead reads for TLS, which reads record by record: 64 KiB are four system calls, and four times somebody is handed a
// quarter of it. What one call brings waits here, and TLS is never given more than the record that it reads, so
// that it is known here whether the next one is complete. One goroutine at a time may use it.
type ahead struct {
	small      [idleAhead]byte
	big        *gathered // while there is much to read
	start, end int       // of what waits
	last       int       // how much the last read brought
	left       int       // how much of the record is not yet handed out; 0: it begins anew
	atOnce     bool      // nobody is to wait for the network
}

// errNotYet says that there is no whole record. TLS goes on after an error that is temporary.
var errNotYet net.Error = notYet{os.ErrDeadlineExceeded}

type notYet struct{ error }

func (notYet) Timeout() bool   { return true }
func (notYet) Temporary() bool { return true }

func (a *ahead) buf() []byte {
	if a.big != nil {
		return a.big.b[:]
	}
	return a.small[:]
}

// whole reports whether a whole record waits.
func (a *ahead) whole() bool {
	waits := a.end - a.start
	if a.left == 0 {
		return waits >= recordHeader && waits >= a.record()
	}
	return waits >= a.left
}

// record is the length of the record that begins with what waits, its header included.
func (a *ahead) record() int {
	return recordHeader + int(binary.BigEndian.Uint16(a.buf()[a.start+recordHeader-2:]))
}

// read hands out what waits of a record, or else reads from the connection.
func (a *ahead) read(from net.Conn, b []byte) (int, error) {
	for {
		if a.left == 0 && a.end-a.start >= recordHeader {
			a.left = a.record()
		}
		if a.left > 0 && a.start < a.end {
			n := copy(b[:min(len(b), a.left)], a.buf()[a.start:a.end])
			a.start += n
			a.left -= n
			return n, nil
		}
		if a.atOnce {
			return 0, errNotYet
		}
		if err := a.fill(from); err != nil {
			return 0, err
		}
	}
}

// fill reads once, behind what waits: less than a header.
func (a *ahead) fill(from net.Conn) error {
	full := a.end == len(a.buf())
	a.end = copy(a.buf(), a.buf()[a.start:a.end])
	a.start = 0
	switch {
	case a.big == nil && full:
		a.big = gathers.Get().(*gathered)
		copy(a.big.b[:], a.small[:a.end])
	case a.big != nil && a.last < idleAhead:
		copy(a.small[:], a.big.b[:a.end])
		gathers.Put(a.big)
		a.big = nil
	}
	n, err := from.Read(a.buf()[a.end:])
	a.end += n
	if a.last = n; n > 0 {
		return nil // an error comes again
	}
	return err
}
