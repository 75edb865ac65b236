package host

import (
	"net/netip"
	"testing"
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
