package bench

import (
	"net"
	"testing"
	"time"
)

func TestHowMuchComesAtATimeIsKnownFromTheLastTenth(t *testing.T) {
	var l lately
	now := time.Unix(0, 0)
	var got []int
	for i := range 75 { // 0.3 s of a look every 4 ms
		n := 4000
		if i > 50 {
			n = 0
		}
		if each, news := l.in(now, n); news {
			got = append(got, each)
		}
		now = now.Add(paceEvery)
	}
	if len(got) != 2 || got[0] < 3900 || got[0] > 4100 || got[1] < 3900 || got[1] > 4100 {
		t.Errorf("4000 bytes a look are %v", got)
	}
	for range 30 {
		if each, news := l.in(now, 0); news && each > 2500 {
			t.Errorf("nothing is %d bytes", each)
		}
		now = now.Add(paceEvery)
	}
}

// Real connections on loopback, for what is asked of the kernel.
func TestWhatComesIsCountedAtAPaceAndAStallIsKnownToIt(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sender, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	receiver, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f := &tcpFlow{receiver: receiver.(*net.TCPConn)}
	if err := f.readAtPace(); err != nil {
		t.Skip(err) // elsewhere than on Linux
	}
	const chunk, silence = 1400, 60 * time.Millisecond
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	sent := int64(0)
	send := func(d time.Duration) {
		for until := time.Now().Add(d); time.Now().Before(until); <-tick.C {
			n, err := sender.Write(make([]byte, chunk))
			if err != nil {
				t.Fatal(err)
			}
			sent += int64(n)
		}
	}
	send(300 * time.Millisecond) // by then the kernel has been told how much is to come
	f.stall.take(time.Now())
	began := time.Now()
	<-time.After(silence)
	lasted := time.Since(began)
	send(50 * time.Millisecond)
	longest, _ := f.stall.take(time.Now())
	// This machine may be late itself, by which a silence is longer.
	if longest < lasted-2*paceEvery || longest > lasted+2*paceEvery+20*time.Millisecond {
		t.Errorf("a silence of %v is taken for one of %v", lasted, longest)
	}
	for until := time.Now().Add(5 * time.Second); f.received.Load() < sent; <-tick.C {
		if time.Now().After(until) {
			t.Fatalf("of %d bytes %d are counted", sent, f.received.Load())
		}
	}
	receiver.Close()
	for until := time.Now().Add(5 * time.Second); ; <-tick.C {
		pace.Lock()
		left := len(pace.looks)
		pace.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d connections that are closed are looked at", left)
		}
	}
}
