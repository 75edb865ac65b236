package netns

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TCPInfo is what the kernel tells of a TCP connection of this machine, in a host of a lab or not.
type TCPInfo struct {
	RTT        time.Duration // smoothed
	Window     int           // congestion window, packets
	Sent       uint64        // bytes, with those sent again
	SentAgain  uint64        // bytes
	Segments   uint32        // with data, that were sent
	Arrived    uint32        // segments with data that arrived
	OutOfOrder uint32        // of those: behind a hole when they arrived, be it one of loss or of another order
	Reordered  uint32        // how often this end, sending, learnt that its packets overtook each other
}

// InfoOfTCP asks for it. Of a connection by MPTCP it is that of the first subflow.
func InfoOfTCP(c *net.TCPConn) (info TCPInfo, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return info, err
	}
	failed := raw.Control(func(fd uintptr) {
		var i *unix.TCPInfo
		if i, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil {
			return
		}
		info = TCPInfo{RTT: time.Duration(i.Rtt) * time.Microsecond, Window: int(i.Snd_cwnd), Sent: i.Bytes_sent, SentAgain: i.Bytes_retrans,
			Segments: i.Data_segs_out, Arrived: i.Data_segs_in, OutOfOrder: i.Rcv_ooopack, Reordered: i.Reord_seen}
	})
	if failed != nil {
		return info, failed
	}
	return info, err
}

// ReadNow reads what has come over a connection, without waiting: 0 bytes without an error when nothing has. At its end it is io.EOF.
func ReadNow(c syscall.RawConn, b []byte) (n int, err error) {
	failed := c.Read(func(fd uintptr) bool {
		n, err = unix.Read(int(fd), b)
		return true
	})
	switch {
	case failed != nil:
		return 0, failed
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, nil
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// SetReceiveLowAt has the kernel say that there is something to read when there are so many bytes of it, and not before. What there is can
// be read all the same.
func SetReceiveLowAt(c *net.TCPConn, bytes int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) })
	return errors.Join(failed, err)
}
