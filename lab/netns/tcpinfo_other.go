//go:build !linux

package netns

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// TCPInfo is what Linux tells.
type TCPInfo struct {
	RTT                                      time.Duration
	Window                                   int
	Sent, SentAgain                          uint64
	Segments, Arrived, OutOfOrder, Reordered uint32
}

func InfoOfTCP(*net.TCPConn) (TCPInfo, error) {
	return TCPInfo{}, errors.New("connections are asked about on Linux only")
}

func ReadNow(syscall.RawConn, []byte) (int, error) {
	return 0, errors.New("connections are read without waiting on Linux only")
}

func SetReceiveLowAt(*net.TCPConn, int) error {
	return errors.New("connections are changed on Linux only")
}
