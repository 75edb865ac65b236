package node

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"weft"
)

func TestADaemonTellsWhatItSpendsItsTimeOn(t *testing.T) {
	c, _ := startDaemon(t)
	for kind, over := range map[string]time.Duration{"cpu": 50 * time.Millisecond, "heap": 0, "allocs": 0, "goroutine": 0} {
		b, err := c.Profile(t.Context(), kind, over)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		text, err := io.ReadAll(z)
		unit := []byte("nanoseconds")
		if kind != "cpu" {
			unit = []byte("count")
		}
		if err != nil || !bytes.Contains(text, unit) {
			t.Errorf("%s: %d bytes without %q: %v", kind, len(text), unit, err)
		}
	}
	for _, bad := range []struct {
		kind string
		over time.Duration
		code weft.Code
	}{
		{"cpu", 0, weft.CodeBadRequest}, {"cpu", time.Hour, weft.CodeBadRequest}, {"cpu", -time.Second, weft.CodeBadRequest},
		{"everything", 0, weft.CodeNotFound}, {"threadcreate", 0, weft.CodeNotFound},
	} {
		if _, err := c.Profile(t.Context(), bad.kind, bad.over); weft.CodeOf(err) != bad.code {
			t.Errorf("%s over %v: %v", bad.kind, bad.over, err)
		}
	}
}

func TestOneProfileOfTheProcessorIsTakenAtATime(t *testing.T) {
	c, _ := startDaemon(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		err := error(&weft.Error{Code: weft.CodeUnavailable})
		for weft.CodeOf(err) == weft.CodeUnavailable { // the second was just there
			_, err = c.Profile(ctx, "cpu", maxProfile)
		}
		done <- err
	}()
	deadline := time.Now().Add(10 * time.Second)
	for refused := false; !refused; { // until the first has begun, the second is taken
		_, err := c.Profile(t.Context(), "cpu", time.Millisecond)
		if refused = weft.CodeOf(err) == weft.CodeUnavailable; !refused && (err != nil || time.Now().After(deadline)) {
			t.Fatalf("a profile beside another ended with %v", err)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the first ended with %v", err)
	}
	// Who stopped waiting does not keep others from theirs.
	for time.Now().Before(deadline) {
		if _, err := c.Profile(t.Context(), "cpu", time.Millisecond); err == nil {
			return
		}
	}
	t.Error("the profile of one who is gone goes on")
}
