package cli

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAHandlersPanicIsToldOnceAndEndsItsRequestAlone(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	mux := http.NewServeMux()
	mux.HandleFunc("GET /broken/{name}", func(http.ResponseWriter, *http.Request) { panic("the goose is out") })
	mux.HandleFunc("GET /ended", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	mux.HandleFunc("GET /well", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "well") })
	s := httptest.NewUnstartedServer(tellPanics(mux, slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelInfo}))))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	for _, path := range []string{"/broken/secret", "/ended"} {
		if r, err := s.Client().Get(s.URL + path); err == nil {
			r.Body.Close()
			t.Errorf("%s was answered: %s", path, r.Status)
		}
	}
	r, err := s.Client().Get(s.URL + "/well")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	if r.Body.Close(); err != nil || string(b) != "well" {
		t.Errorf("another request was answered %q, %v", b, err)
	}
	s.Close() // all handlers have ended
	text := said.String()
	if strings.Count(text, "level=") != 1 || strings.Count(text, "level=ERROR") != 1 {
		t.Errorf("said was\n%s", text)
	}
	for _, part := range []string{`request="GET /broken/{name}"`, `panic="the goose is out"`, "broken_test.go"} {
		if !strings.Contains(text, part) {
			t.Errorf("nothing tells %s:\n%s", part, text)
		}
	}
	if strings.Contains(text, "secret") {
		t.Error("what was asked for is told")
	}
}
