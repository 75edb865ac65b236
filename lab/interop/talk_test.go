package interop

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// echoPort is where, in every namespace, whatever comes is sent back.
const echoPort = 7 // RFC 862

// serveEcho sends back what comes to any address, by TCP and UDP, until it is killed.
func serveEcho() error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", echoPort))
	if err != nil {
		return err
	}
	c, err := net.ListenUDP("udp", &net.UDPAddr{Port: echoPort})
	if err != nil {
		return err
	}
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := c.ReadFromUDPAddrPort(b)
			if err == nil {
				c.WriteToUDPAddrPort(b[:n], from)
			} else if errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			io.Copy(conn, conn)
		}()
	}
}

// A talk is what is said to echoes.
type talk struct {
	To []netip.Addr // a connection and datagrams to each, all at once
	// Bytes go by each connection, Rate of them a second; 0: as fast as can be.
	Bytes, Rate int64
	// Datagrams go beside them, one each Pause.
	Datagrams int
	Pause     time.Duration
}

// heard is what came back from one.
type heard struct {
	To        netip.Addr
	Bytes     int64         // by TCP
	Silence   time.Duration // the longest without any of them
	Datagrams int
	Twice     int    // datagrams that came again
	Wrong     string // what was not as it was sent, or did not go at all
}

// serveTalk holds the talk that standard input tells of, and writes what was heard to standard output, in JSON.
func serveTalk() error {
	var k talk
	if err := json.NewDecoder(os.Stdin).Decode(&k); err != nil {
		return err
	}
	list := make([]heard, len(k.To))
	var wg sync.WaitGroup
	for i, to := range k.To {
		h := &list[i]
		h.To = to
		wg.Go(func() {
			both := make(chan error, 1)
			go func() { both <- h.sendDatagrams(k) }()
			err := h.sendBytes(k)
			if err = errors.Join(err, <-both); err != nil {
				h.Wrong = err.Error()
			}
		})
	}
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(list)
}

// stream is the content of a connection: the same at both ends, and nowhere twice.
func stream(to netip.Addr) *rand.ChaCha8 {
	var seed [32]byte
	copy(seed[:], to.AsSlice())
	return rand.NewChaCha8(seed)
}

// patience is how long an echo may be silent: longer than TCP waits between the tries of a second without any way.
const patience = 30 * time.Second

func (h *heard) sendBytes(k talk) error {
	if k.Bytes == 0 {
		return nil
	}
	conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(h.To, echoPort).String(), patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() {
		began, b, content := time.Now(), make([]byte, 1<<13), stream(h.To)
		for sent := int64(0); sent < k.Bytes; {
			b := b[:min(int64(len(b)), k.Bytes-sent)]
			content.Read(b)
			if _, err := conn.Write(b); err != nil {
				return // the reader will miss it
			}
			sent += int64(len(b))
			if k.Rate > 0 {
				time.Sleep(time.Until(began.Add(time.Duration(float64(sent) / float64(k.Rate) * float64(time.Second)))))
			}
		}
	}()
	b, want, content := make([]byte, 1<<13), make([]byte, 1<<13), stream(h.To)
	for last := time.Now(); h.Bytes < k.Bytes; {
		conn.SetReadDeadline(last.Add(patience))
		n, err := conn.Read(b)
		if err != nil {
			return fmt.Errorf("after %d of %d bytes, %v after the last: %w", h.Bytes, k.Bytes, time.Since(last).Round(time.Millisecond), err)
		}
		content.Read(want[:n])
		if !bytes.Equal(b[:n], want[:n]) {
			return fmt.Errorf("what came at byte %d of %d is not what was sent", h.Bytes, k.Bytes)
		}
		h.Bytes += int64(n)
		h.Silence = max(h.Silence, time.Since(last))
		last = time.Now()
	}
	return nil
}

// datagram is the content of one: its number, and bytes that depend on it, of all lengths that fit a tunnel.
func datagram(number uint32) []byte {
	r := rand.New(rand.NewPCG(uint64(number), 1))
	b := make([]byte, 4+r.IntN(1300))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	binary.BigEndian.PutUint32(b, number)
	return b
}

func (h *heard) sendDatagrams(k talk) error {
	if k.Datagrams == 0 {
		return nil
	}
	conn, err := net.Dial("udp", netip.AddrPortFrom(h.To, echoPort).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	end := time.Now().Add(time.Duration(k.Datagrams)*k.Pause + patience/10)
	go func() {
		tick := time.NewTicker(max(k.Pause, time.Microsecond))
		defer tick.Stop()
		for i := range k.Datagrams {
			conn.Write(datagram(uint32(i))) // refused: that shows in what does not come back
			<-tick.C
		}
	}()
	seen := make([]bool, k.Datagrams)
	for b := make([]byte, 1<<16); h.Datagrams < k.Datagrams; {
		conn.SetReadDeadline(end)
		n, err := conn.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			continue // an ICMP error about an earlier one
		case n < 4:
			return fmt.Errorf("a datagram of %d bytes came", n)
		}
		number := binary.BigEndian.Uint32(b)
		switch {
		case number >= uint32(len(seen)) || !bytes.Equal(b[:n], datagram(number)):
			return fmt.Errorf("datagram %d is not what was sent", number)
		case seen[number]:
			h.Twice++
		default:
			seen[number] = true
			h.Datagrams++
		}
	}
	return nil
}
