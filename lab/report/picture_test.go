package report

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func pictureOf(t *testing.T, r *Report) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "demo.svg")
	if err := r.WritePicture(path); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestThePictureSaysWhatTheScreenSays(t *testing.T) {
	r := exampleReport()
	picture := pictureOf(t, r)
	for _, want := range []string{"kill backend", "12,345", "3 (3)", "120 (125)", "412 ms", "50.00 %", "6.5 ms", "everything as expected", "prefers-color-scheme: dark"} {
		if !strings.Contains(picture, want) {
			t.Errorf("no %q in\n%s", want, picture)
		}
	}
	if picture != pictureOf(t, r) {
		t.Error("equal reports have different pictures")
	}
	// Text is escaped, and every element ends.
	r.Events[0].Name = "a<b&c"
	decoder := xml.NewDecoder(strings.NewReader(pictureOf(t, r)))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestThePictureOfAFailureSaysSo(t *testing.T) {
	r := exampleReport()
	r.Events[0].Problem("%d packets vanished", 7)
	picture := pictureOf(t, r)
	if !strings.Contains(picture, "NOT as expected") || !strings.Contains(picture, `class="bad"`) || strings.Contains(picture, `class="good"`) {
		t.Errorf("picture\n%s", picture)
	}
}

func TestAPictureOfNothing(t *testing.T) {
	if picture := pictureOf(t, &Report{}); !strings.Contains(picture, "</svg>") || strings.Contains(picture, "NaN") {
		t.Errorf("picture\n%s", picture)
	}
}
