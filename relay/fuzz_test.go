package relay

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"weft/wire"
)

func FuzzFramesAtTheRelay(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{5, 0, 0, 5, 0, 0, 0, 2, 'x', 5, 0, 0, 4, 0, 0, 0, 2})
	f.Add([]byte{6, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 7, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{5, 0, 0xff, 0xff, 0, 0, 0, 3})
	f.Add([]byte{5, 0, 0, 5, 0, 0, 0, 3, 'x', 5, 0, 0, 5, 0, 0, 0, 3, 'y', 5, 0, 0, 6, 0, 0, 0, 3, 'z', 'z'})
	f.Add(append([]byte{2, 0, 0, 148}, make([]byte, 148)...))
	w := newRelay(f, nil).serveUDP(nil)
	w.member(3).udp().bind()
	a := w.member(1)
	adm := &admission{ticket: wire.Ticket{Node: 1, Network: testNetwork, Key: a.key.Public(), NotAfter: time.Now().Add(time.Hour)}}
	adm.box, _ = wire.RelayBox(w.key, a.key.Public())
	f.Fuzz(func(t *testing.T, b []byte) {
		conn := &script{in: b}
		ss := &session{s: w.relay, conn: conn}
		if err := ss.register(adm); err != nil {
			t.Fatal(err)
		}
		if err := ss.run(); err == nil {
			t.Error("the stream ended without a word")
		}
		for out := conn.out.Bytes(); len(out) > 0; out = out[frameSize(out):] {
			if n, err := wholeFrames(out); err != nil || n == 0 {
				t.Fatalf("the relay writes %x", out)
			}
		}
	})
}

func FuzzFramesAtTheNode(f *testing.F) {
	f.Add([]byte{5, 0, 0, 5, 0, 0, 0, 2, 'x', 4, 0, 0, 1, 2}, uint8(3))
	f.Add([]byte{6, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 3, 0, 0, 2, 0, 0}, uint8(0))
	f.Add(bytes.Repeat([]byte{5, 0, 0, 5, 0, 0, 0, 2, 'x'}, 2000), uint8(255))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		var whole int
		for r := (frameReader{r: &script{in: b, piece: int(piece) + 1}}); ; {
			frames, err := r.next()
			if err != nil {
				break
			}
			if !bytes.Equal(frames, b[whole:whole+len(frames)]) {
				t.Fatalf("%x in pieces of %d gives other frames", b, piece+1)
			}
			whole += len(frames)
			for _, d := range datagramsOf(nil, frames) {
				if len(d) == 0 {
					t.Error("an empty datagram")
				}
			}
		}
		if want, err := wholeFrames(b); err == nil && whole != want {
			t.Errorf("%x: %d bytes of frames in pieces of %d, %d at once", b, whole, piece+1, want)
		}
	})
}

// script is a connection that brings what it holds, in pieces, and keeps what is written.
type script struct {
	net.Conn
	in    []byte
	piece int
	out   bytes.Buffer
}

func (s *script) Read(b []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := len(s.in)
	if s.piece > 0 {
		n = min(n, s.piece)
	}
	n = copy(b, s.in[:n])
	s.in = s.in[n:]
	return n, nil
}
func (s *script) Write(b []byte) (int, error)      { return s.out.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }
