import gzip

from stream_recon.app.viewer.document import MARK, PageBody, with_page

PAGE = "<!doctype html><html><head><meta charset='utf-8'><title>Viser</title></head><body>\u00e9</body></html>"


def test_the_title_is_text_and_ends_no_script() -> None:
    text = with_page(PAGE, '</script><b>"kitchen\\')
    assert text.count("<title>") == 1 and "<title>&lt;/script&gt;&lt;b&gt;&quot;kitchen\\</title>" in text
    assert text.count("</script>") == 1 and f'id="{MARK}"' in text
    assert "<body>\u00e9</body>" in text


def test_bodies_follow_the_title_and_the_encoding() -> None:
    page = PageBody()
    plain = page.body(PAGE.encode(), zipped=False)
    assert gzip.decompress(page.body(gzip.compress(PAGE.encode()), zipped=True)) == plain
    page.title = "kitchen"
    assert b"<title>kitchen</title>" in page.body(PAGE.encode(), zipped=False)
