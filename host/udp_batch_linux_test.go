package host

import (
	"net/netip"
	"os"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is read at once is sent on from where it lies: it has to fit a core's cache. Long runs are so taken a few at a
// time, single datagrams many.
func TestAReaderTakesFewLongRunsAndManySingleDatagramsAtOnce(t *testing.T) {
	_, from := udpSocket(t, "udp4", "127.0.0.1:0")
	conn, to := udpSocket(t, "udp4", "127.0.0.1:0")
	if send, receive := from.Offload(); !send || !receive {
		t.Skip("this kernel sends or receives no runs")
	}
	if got, _, err := SetUDPBuffers(conn, 8<<20); err != nil || got < 8<<20 {
		t.Skip("the socket's buffer cannot be as large as the test needs: run as root")
	}
	var dest UDPDest
	from.SetDest(&dest, to.Local(), netip.Addr{})
	w, r := NewUDPWriter(), NewUDPReader(to)
	w.Patient = true
	read := func() (messages, bytes int) {
		reads, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range reads {
			bytes += len(m.Data)
		}
		return len(reads), bytes
	}
	const segment, runs = 1452, 60
	for range runs {
		w.Add(&dest, make([]byte, 44*segment), segment)
	}
	if c := w.Flush(); c.Datagrams != runs*44 {
		t.Fatalf("sent: %+v", c)
	}
	last := 0
	for left := runs * 44 * segment; left > 0; {
		n, bytes := read()
		left -= bytes
		if left > 0 {
			last = n
		}
	}
	if last*44*segment > udpReadMost {
		t.Errorf("%d runs of 64 KiB are taken at once", last)
	}
	for range 8 * UDPBatch {
		w.Add(&dest, make([]byte, segment), 0)
		w.Flush() // each by itself
	}
	most := 0
	for left := 8 * UDPBatch * segment; left > 0; {
		n, bytes := read()
		left -= bytes
		most = max(most, n)
	}
	if most != UDPBatch {
		t.Errorf("of single datagrams %d are taken at once, not %d", most, UDPBatch)
	}
}

// A reader can hold 2 MiB, and a node has one for each socket: what was never written to takes no memory, also where Go has memory
// that was in use before, which it would clear.
func TestAReaderTakesMemoryForWhatCameAndNoMore(t *testing.T) {
	for range 4 {
		b := make([]byte, UDPBatch*slabStride)
		for i := range b {
			b[i] = 1
		}
	}
	runtime.GC()
	_, from := udpSocket(t, "udp4", "127.0.0.1:0")
	_, to := udpSocket(t, "udp4", "127.0.0.1:0")
	var dest UDPDest
	from.SetDest(&dest, to.Local(), netip.Addr{})
	w, r := NewUDPWriter(), NewUDPReader(to)
	for _, size := range []int{1, 100, 1452} {
		w.Add(&dest, make([]byte, size), 0)
		w.Flush()
		if _, err := r.Read(); err != nil {
			t.Fatal(err)
		}
	}
	if got, most := resident(t, r.memory), udpReadLeast*os.Getpagesize(); got > most {
		t.Errorf("after three short datagrams %d bytes are in memory, more than %d", got, most)
	}
	const segment, runs = 1452, 40
	for range runs {
		w.Add(&dest, make([]byte, 40*segment), segment)
		w.Flush()
		if _, err := r.Read(); err != nil {
			t.Fatal(err)
		}
	}
	if got, most := resident(t, r.memory), udpReadLeast*slabStride; got > most {
		t.Errorf("after runs that came one by one %d bytes are in memory, more than %d", got, most)
	}
	b := r.memory
	r.Close()
	if got := resident(t, b); got > 0 {
		t.Errorf("%d bytes are in memory when the reader is closed", got)
	}
}

// resident is how much of b is in memory, in bytes.
func resident(t *testing.T, b []byte) int {
	t.Helper()
	page := os.Getpagesize()
	at := uintptr(unsafe.Pointer(&b[0])) &^ uintptr(page-1)
	is := make([]byte, (len(b)+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, at, uintptr(len(b)), uintptr(unsafe.Pointer(&is[0]))); errno != 0 {
		t.Fatal(errno)
	}
	n := 0
	for _, x := range is {
		n += int(x&1) * page
	}
	return n
}
