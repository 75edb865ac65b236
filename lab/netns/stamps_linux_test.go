package netns

import (
	"encoding/binary"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stampPort is where datagrams go whose times are taken by the kernel: when they leave one interface and come out of
// another. No program that is late with its own reading takes part in that.
const stampPort = 7100

// stamps is an ear on an interface that notes when datagrams to stampPort pass, by the number that they begin with.
type stamps struct{ fd int }

// newStamps listens on an interface of a host.
func newStamps(t testing.TB, h *Host, device string) stamps {
	t.Helper()
	var s stamps
	err := h.Do(func() error {
		at, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		// Ethernet, IPv4 without options, UDP to stampPort.
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 5, K: unix.ETH_P_IP},
			{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 23},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.IPPROTO_UDP},
			{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 36},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: stampPort},
			{Code: unix.BPF_RET | unix.BPF_K, K: 64},
			{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		}
		if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}); err != nil {
			return err
		}
		unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: network(unix.ETH_P_ALL), Ifindex: at.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	return s
}

// take returns when each number passed, of those heard so far.
func (s stamps) take(into map[uint64]time.Time) {
	var buf [128]byte
	var oob [256]byte
	for {
		n, oobn, _, _, err := unix.Recvmsg(s.fd, buf[:], oob[:], 0)
		if err != nil {
			return
		}
		control, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || n < 50 {
			continue
		}
		for _, m := range control {
			if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS {
				sec, nsec := int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:]))
				into[binary.BigEndian.Uint64(buf[42:])] = time.Unix(sec, nsec)
			}
		}
	}
}

// A passage is when a datagram left one interface, and how much later it came out of the other. Those that did not come
// out are not among them.
type passage struct {
	left time.Time
	took time.Duration
}

// passages are those between two ears, in the order in which they left.
func passages(out, in stamps) (list []passage, lost int) {
	left, came := map[uint64]time.Time{}, map[uint64]time.Time{}
	out.take(left)
	in.take(came)
	for n, at := range left {
		if then, ok := came[n]; ok {
			list = append(list, passage{at, then.Sub(at)})
		} else {
			lost++
		}
	}
	slices.SortFunc(list, func(a, b passage) int { return a.left.Compare(b.left) })
	return list, lost
}

// quantile is one of what passages took.
func quantile(list []passage, q float64) time.Duration {
	took := make([]time.Duration, len(list))
	for i, p := range list {
		took[i] = p.took
	}
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}
