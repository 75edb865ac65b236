package demo

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// pair is one TCP connection over loopback.
func pair(t *testing.T) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a, b = dialed.(*net.TCPConn), accepted.(*net.TCPConn)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// until polls for a condition of the real network.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(5 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited 5 s for %s", what)
		}
	}
}

func TestAStreamThatIsLeftAloneLosesNothing(t *testing.T) {
	s := startStream(pair(t))
	var blocks uint64
	until(t, "twenty blocks", func() bool {
		w, err := s.look()
		if err != nil {
			t.Fatal(err)
		}
		blocks += w.Blocks
		return blocks >= 20
	})
	sent, lost, err := s.finish(5 * time.Second)
	if err != nil || lost != 0 || sent < blocks {
		t.Errorf("of %d blocks sent %d were lost: %v", sent, lost, err)
	}
}

// A relay between two connections that can be told to stall, to swallow and to garble.
func TestAStreamSeesStallsLossAndGarbage(t *testing.T) {
	for name, spoil := range map[string]struct {
		do   func(block []byte) []byte
		says string
	}{
		"a lost block":    {func([]byte) []byte { return nil }, "says to be block 6"},
		"a garbled block": {func(b []byte) []byte { b[100]++; return b }, "is not what was sent"},
	} {
		t.Run(name, func(t *testing.T) {
			from, in := pair(t)
			out, to := pair(t)
			go func() {
				defer out.Close()
				block := make([]byte, blockSize)
				for n := 0; ; n++ {
					if _, err := io.ReadFull(in, block); err != nil {
						return
					}
					b := block
					if n == 5 {
						b = spoil.do(block)
					}
					if _, err := out.Write(b); err != nil {
						return
					}
				}
			}()
			s := startStream(from, to)
			until(t, "the stream to break", func() bool { _, err := s.look(); return err != nil })
			_, lost, err := s.finish(100 * time.Millisecond)
			if err == nil || !strings.Contains(err.Error(), "block 5") || !strings.Contains(err.Error(), spoil.says) {
				t.Errorf("the error is %v", err)
			}
			if lost == 0 {
				t.Error("nothing counts as lost")
			}
		})
	}
}

func TestAStreamMeasuresItsLongestSilence(t *testing.T) {
	from, in := pair(t)
	out, to := pair(t)
	const silence = 300 * time.Millisecond
	go func() {
		defer out.Close()
		io.CopyN(out, in, 10*blockSize)
		<-time.After(silence)
		io.Copy(out, in)
	}()
	s := startStream(from, to)
	var longest time.Duration
	var blocks uint64
	until(t, "blocks behind the silence", func() bool {
		w, err := s.look()
		if err != nil {
			t.Fatal(err)
		}
		longest, blocks = max(longest, w.Longest), blocks+w.Blocks
		return blocks > 15
	})
	// It is measured from the last block before to the first one after, so it can only be longer.
	if longest < silence-blockEvery || longest > silence+2*time.Second {
		t.Errorf("the longest silence was %v, want %v or somewhat more", longest, silence)
	}
	if _, lost, err := s.finish(5 * time.Second); err != nil || lost != 0 {
		t.Errorf("%d blocks lost: %v", lost, err)
	}
}

func TestAStreamThatIsCutSaysSo(t *testing.T) {
	from, to := pair(t)
	s := startStream(from, to)
	until(t, "the first block", func() bool { w, _ := s.look(); return w.Blocks > 0 })
	to.SetLinger(0)
	to.Close()
	until(t, "the stream to break", func() bool { _, err := s.look(); return err != nil })
	if _, _, err := s.finish(time.Second); err == nil {
		t.Error("a cut connection is no error")
	}
}

func TestACallCountsWhatTheNetworkLoses(t *testing.T) {
	listen := func() *net.UDPConn {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	middle, ear := listen(), listen()
	mouth, err := net.Dial("udp", middle.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		packet := make([]byte, 2*callSize)
		for n := 0; ; n++ {
			size, _, err := middle.ReadFrom(packet)
			if err != nil {
				return
			}
			if n < 10 || n >= 15 { // five are lost
				middle.WriteTo(packet[:size], ear.LocalAddr())
			}
			if n == 20 { // what is not the call's does not count
				middle.WriteTo([]byte("stranger"), ear.LocalAddr())
			}
		}
	}()
	c := startCall(mouth, ear)
	until(t, "thirty packets", func() bool { return c.mark() >= 30 })
	c.finish()
	sent := c.mark()
	if lost := c.lost(0, sent); lost != 5 {
		t.Errorf("of %d packets %d count as lost, want 5", sent, lost)
	}
	if before, within := c.lost(0, 10), c.lost(10, 15); before != 0 || within != 5 {
		t.Errorf("lost before the gap: %d, within: %d; want none and 5", before, within)
	}
}
