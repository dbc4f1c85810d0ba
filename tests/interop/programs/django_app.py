"""A Django project in one file: a form with a session, an upload, a page that streams. Run by tests/interop/django.rs."""
import hashlib

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, HttpResponseRedirect, JsonResponse, StreamingHttpResponse
from django.template import Context, Engine
from django.urls import path

settings.configure(
    ALLOWED_HOSTS=["localhost"],
    SECRET_KEY="for tests",
    ROOT_URLCONF=__name__,
    # As its documentation says for an application behind a proxy with TLS.
    SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    SECURE_SSL_REDIRECT=True,
    USE_X_FORWARDED_HOST=True,
    CSRF_COOKIE_SECURE=True,
    SESSION_COOKIE_SECURE=True,
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
    ],
)
FORM = Engine().from_string('<form method="post">{% csrf_token %}<input name="name"></form>')


def form(request):
    if request.method == "POST":
        request.session["name"] = request.POST["name"]
        return HttpResponseRedirect("/me/")
    from django.middleware.csrf import get_token
    return HttpResponse(FORM.render(Context({"csrf_token": get_token(request)})))


def me(request):
    return JsonResponse({
        "name": request.session.get("name"), "secure": request.is_secure(), "uri": request.build_absolute_uri(),
        "client": request.META["HTTP_X_FORWARDED_FOR"],
    })


def upload(request):
    file = request.FILES["file"]
    digest = hashlib.sha256()
    for piece in file.chunks():
        digest.update(piece)
    return JsonResponse({"name": file.name, "size": file.size, "sha256": digest.hexdigest()})


def lines(request):
    return StreamingHttpResponse((f"line {number}\n" for number in range(20_000)), content_type="text/plain")


def csrf_exempt(view):
    view.csrf_exempt = True
    return view


urlpatterns = [path("form/", form), path("me/", me), path("upload/", csrf_exempt(upload)), path("lines/", lines)]
app = get_wsgi_application()
